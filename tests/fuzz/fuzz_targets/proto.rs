//! Decodes arbitrary bytes as rendezvous messages. The decoder never panics, reads no more bytes
//! than there are, and accepts only the bytes that encoding the message gives.

#![no_main]

use libfuzzer_sys::fuzz_target;
use peerweave_bootstrap::proto::{MAX_FRAME_LEN_BYTES, decode};

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    loop {
        match decode(rest) {
            Ok(Some((frame, used))) => {
                assert!(used > 4 && used <= rest.len() && used <= 4 + MAX_FRAME_LEN_BYTES);
                assert_eq!(frame.to_bytes(), &rest[..used]);
                // A truncated frame needs more bytes; nothing is decoded before they arrive.
                assert_eq!(decode(&rest[..used - 1]), Ok(None));
                rest = &rest[used..];
            }
            Ok(None) => break,
            Err(error) => {
                // More bytes cannot make the frame valid.
                let mut longer = rest.to_vec();
                longer.extend([0; 8]);
                assert_eq!(decode(&longer), Err(error));
                break;
            }
        }
    }
});
