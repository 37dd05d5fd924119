//! Stream-ordered waits for a word of memory, and stream-ordered writes of a word.

use core::ffi::c_uint;

use crate::abi::{Code, CuStream, Result};
use crate::calls::exports;
use crate::memory::address::Need;
use crate::memory::transfer;
use crate::streams::stream::resolve;
use crate::streams::submit::submit;
use crate::work::piece::Work;

fn wait_value(stream: CuStream, address: u64, value: u64, bytes: u64, flags: c_uint) -> Result {
    let stream = resolve(stream)?;
    if !address.is_multiple_of(bytes) || flags & !0x4000_0003 != 0 {
        return Err(Code::INVALID_VALUE);
    }
    transfer::check(stream.context.device, address, bytes, Need::Read, false)?;
    submit(&stream, Work::WaitValue { address, value, bytes, condition: flags & 3 })
}

fn write_value(stream: CuStream, address: u64, value: u64, bytes: u64, flags: c_uint) -> Result {
    let stream = resolve(stream)?;
    if !address.is_multiple_of(bytes) || flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    transfer::check(stream.context.device, address, bytes, Need::Write, false)?;
    submit(&stream, Work::Write { address, value, bytes })
}

exports! {
    8000 fn cuStreamWaitValue32_v2(stream: CuStream, address: u64, value: u32, flags: c_uint) {
        wait_value(stream, address, u64::from(value), 4, flags)
    }

    9000 fn cuStreamWaitValue64_v2(stream: CuStream, address: u64, value: u64, flags: c_uint) {
        wait_value(stream, address, value, 8, flags)
    }

    8000 fn cuStreamWriteValue32_v2(stream: CuStream, address: u64, value: u32, flags: c_uint) {
        write_value(stream, address, u64::from(value), 4, flags)
    }

    9000 fn cuStreamWriteValue64_v2(stream: CuStream, address: u64, value: u64, flags: c_uint) {
        write_value(stream, address, value, 8, flags)
    }
}
