//! Converts errors of the driver: every failure becomes an internal error with the name of the
//! function.

pub(crate) use peerweave_fake_common::driver::*;

use crate::abi::{Code, Fail};

impl From<Broken> for Fail {
    fn from(broken: Broken) -> Self {
        let text = match broken {
            Broken::Absent(name) => format!("the driver has no {name}"),
            Broken::Code(name, code) => format!("{name} failed with {code}"),
            Broken::Capture => "the stream's capture has failed".to_owned(),
        };
        Self { code: Code::INTERNAL, text }
    }
}
