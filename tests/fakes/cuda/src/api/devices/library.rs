//! Functions of the library as a whole: initialization, version, texts of errors, profiler.

use core::ffi::{c_int, c_uint};

use crate::abi::{CODES, Code, Out, Result};
use crate::calls::exports;
use crate::machine::driver::{driver, init};
use crate::machine::features;

fn text(code: c_int, out: &Out<usize>, name: bool) -> Result {
    let (ok_name, ok_text) = (c"CUDA_SUCCESS", c"no error");
    let found = if code == 0 {
        Some(if name { ok_name } else { ok_text })
    } else {
        CODES.iter().find(|entry| entry.0 == code).map(|entry| if name { entry.1 } else { entry.2 })
    };
    out.set(found.map_or(0, |text| text.as_ptr() as usize))?;
    found.map(|_| ()).ok_or(Code::INVALID_VALUE)
}

exports! {
    2000 fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        init().map(|_| ())
    }

    2020 fn cuDriverGetVersion(version: Out<c_int>) {
        version.set(features::version())
    }

    6000 fn cuGetErrorName(code: c_int, out: Out<usize>) {
        text(code, &out, true)
    }

    6000 fn cuGetErrorString(code: c_int, out: Out<usize>) {
        text(code, &out, false)
    }

    4000 fn cuProfilerStart() {
        // Has no effect, as in a driver without an attached profiler.
        driver().map(|_| ())
    }

    4000 fn cuProfilerStop() {
        driver().map(|_| ())
    }
}
