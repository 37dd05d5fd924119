//! Properties of the wire format. An encoded frame decodes to the same frame. Truncated or damaged
//! data causes no panic and is never decoded as a different frame.

use peerweave_bootstrap::proto::{
    Collective, Fault, Frame, HELLO_FRAME_LEN_BYTES, Hello, MAX_BLOB_LEN_BYTES, MAX_FRAME_LEN_BYTES, MAX_KEY_LEN_BYTES, MAX_PES,
    ProtocolError, ROUND_BIT, decode,
};
use peerweave_bootstrap::{Refusal, Token};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

fn pes() -> impl Strategy<Value = Vec<u32>> {
    btree_set(0..MAX_PES, 0..40).prop_map(|pes| pes.into_iter().collect())
}

fn fault() -> impl Strategy<Value = Fault> {
    let pe = 0..MAX_PES;
    prop_oneof![
        pe.clone().prop_map(|pe| Fault::Disconnected { pe }),
        pe.clone().prop_map(|pe| Fault::Left { pe }),
        (pe.clone(), ".{0,100}").prop_map(|(pe, why)| Fault::Reported { pe, why }),
        (pe.clone(), pes()).prop_map(|(pe, missing)| Fault::GaveUp { pe, missing }),
        (pe.clone(), ".{0,100}", pe, ".{0,100}").prop_map(|(one, one_call, other, other_call)| Fault::Mismatch {
            one,
            one_call,
            other,
            other_call
        }),
        any::<(u64, u64)>().prop_map(|(len_bytes, limit_bytes)| Fault::StoreFull { len_bytes, limit_bytes }),
        Just(Fault::Closing),
    ]
}

fn hello() -> impl Strategy<Value = Hello> {
    (1..=MAX_PES, any::<prop::sample::Index>(), any::<u32>(), ".{0,8}").prop_map(|(n_pes, pe, pid, identity)| Hello {
        pe: pe.index(n_pes as usize) as u32,
        n_pes,
        pid,
        token: Token::derived_from(&identity),
    })
}

fn frame() -> impl Strategy<Value = Frame> {
    let key = ".{0,60}";
    let blob = || vec(any::<u8>(), 0..2000);
    let request = any::<u64>;
    prop_oneof![
        hello().prop_map(Frame::Hello),
        (request(), key).prop_map(|(request, label)| {
            Frame::Enter { request: request | ROUND_BIT, collective: Collective::Barrier, label, blob: vec![] }
        }),
        (request(), key, blob()).prop_map(|(request, label, blob)| {
            Frame::Enter { request: request | ROUND_BIT, collective: Collective::Exchange, label, blob }
        }),
        (request(), key, blob()).prop_map(|(request, key, value)| Frame::Put { request, key, value }),
        (request(), key, any::<bool>()).prop_map(|(request, key, wait)| Frame::Get { request, key, wait }),
        (request(), key).prop_map(|(request, key)| Frame::Remove { request, key }),
        request().prop_map(|request| Frame::Check { request }),
        request().prop_map(|request| Frame::Cancel { request }),
        (0..MAX_PES).prop_map(|pe| Frame::Blame { pe }),
        any::<u8>().prop_map(|code| Frame::Abort { code }),
        Just(Frame::Leave),
        Just(Frame::Welcome),
        prop_oneof![Just(Refusal::Token), Just(Refusal::AlreadyJoined), Just(Refusal::NPes), Just(Refusal::Version)]
            .prop_map(|reason| Frame::Refused { reason }),
        (request(), blob()).prop_map(|(request, blob)| Frame::Part { request, blob }),
        request().prop_map(|request| Frame::Done { request }),
        (request(), blob()).prop_map(|(request, value)| Frame::Value { request, value }),
        request().prop_map(|request| Frame::Absent { request }),
        (request(), pes()).prop_map(|(request, missing)| Frame::Late { request, missing }),
        (request(), fault()).prop_map(|(request, fault)| Frame::Failed { request, fault }),
        fault().prop_map(|fault| Frame::Lost { fault }),
        (0..MAX_PES, any::<u8>()).prop_map(|(pe, code)| Frame::Aborted { pe, code }),
    ]
}

proptest! {
    #[test]
    fn encoded_frame_decodes_to_the_same_frame(frame in frame(), tail in vec(any::<u8>(), 0..20)) {
        let mut bytes = frame.to_bytes();
        let len_bytes = bytes.len();
        // The bytes of `tail` belong to the next frame.
        bytes.extend(tail);
        prop_assert_eq!(decode(&bytes), Ok(Some((frame, len_bytes))));
    }

    #[test]
    fn partial_frame_needs_more_bytes(frame in frame(), cut in any::<prop::sample::Index>()) {
        let bytes = frame.to_bytes();
        prop_assert_eq!(decode(&bytes[..cut.index(bytes.len())]), Ok(None));
    }

    #[test]
    fn damaged_frame_never_decodes_to_the_original(
        frame in frame(), at in any::<prop::sample::Index>(), flip in 1u8..,
    ) {
        let mut bytes = frame.to_bytes();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        if let Ok(Some((decoded, used))) = decode(&bytes) {
            prop_assert_ne!(&decoded, &frame);
            prop_assert_eq!(decoded.to_bytes(), &bytes[..used]);
        }
    }

    #[test]
    fn arbitrary_bytes_cause_no_panic(bytes in vec(any::<u8>(), 0..300)) {
        if let Ok(Some((frame, used))) = decode(&bytes) {
            prop_assert_eq!(frame.to_bytes(), &bytes[..used]);
        }
    }

    #[test]
    fn invalid_bytes_after_a_valid_header_cause_no_panic(kind in 0u8..26, body in vec(any::<u8>(), 0..120)) {
        let mut bytes = (body.len() as u32 + 1).to_le_bytes().to_vec();
        bytes.push(kind);
        bytes.extend(&body);
        if let Ok(Some((frame, used))) = decode(&bytes) {
            prop_assert_eq!(used, bytes.len());
            prop_assert_eq!(frame.to_bytes(), bytes);
        }
    }

    #[test]
    fn stream_of_frames_is_split_at_frame_boundaries(frames in vec(frame(), 0..6)) {
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.encode(&mut bytes));
        let mut at = 0;
        for frame in frames {
            let (decoded, used) = decode(&bytes[at..]).unwrap().unwrap();
            prop_assert_eq!(decoded, frame);
            at += used;
        }
        prop_assert_eq!(at, bytes.len());
    }
}

#[test]
fn encoded_values_of_maximum_size_are_accepted() {
    let enter = |label: usize, blob: usize| Frame::Enter {
        request: ROUND_BIT,
        collective: Collective::Exchange,
        label: "l".repeat(label),
        blob: vec![7; blob],
    };
    let largest = enter(MAX_KEY_LEN_BYTES, MAX_BLOB_LEN_BYTES);
    assert_eq!(decode(&largest.to_bytes()).unwrap().unwrap().0, largest);
    for (frame, field) in [(enter(MAX_KEY_LEN_BYTES + 1, 0), "label"), (enter(0, MAX_BLOB_LEN_BYTES + 1), "blob")] {
        assert_eq!(decode(&frame.to_bytes()), Err(ProtocolError::Field { field }));
    }
    let everybody = Frame::Late { request: 1, missing: (0..MAX_PES).collect() };
    assert_eq!(decode(&everybody.to_bytes()).unwrap().unwrap().0, everybody);
    for len_bytes in [0, MAX_FRAME_LEN_BYTES as u32 + 1, u32::MAX] {
        assert_eq!(decode(&len_bytes.to_le_bytes()), Err(ProtocolError::FrameLength { len_bytes }));
    }
}

#[test]
fn hello_frame_is_refused_at_the_first_wrong_byte() {
    let hello = Frame::Hello(Hello { pe: 0, n_pes: 1, pid: 0, token: Token::derived_from("x") }).to_bytes();
    assert_eq!(hello.len(), HELLO_FRAME_LEN_BYTES);
    for at in 0..13 {
        let mut bytes = hello[..=at].to_vec();
        bytes[at] = !bytes[at];
        // The length can be checked only when all four bytes have arrived.
        assert_eq!(decode(&bytes).is_err(), at >= 3, "byte {at}");
    }
}

#[test]
fn unordered_lists_of_pes_are_refused() {
    for missing in [vec![1, 1], vec![2, 1]] {
        let bytes = Frame::Late { request: 1, missing }.to_bytes();
        assert_eq!(decode(&bytes), Err(ProtocolError::Field { field: "missing" }));
    }
}
