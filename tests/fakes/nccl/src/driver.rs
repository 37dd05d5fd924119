//! The driver below, with this library's errors: every failure of it becomes
//! `ncclUnhandledCudaError` with the call's name.

pub(crate) use peerweave_fake_common::driver::*;

use crate::abi::{Code, Fail};

impl From<Broken> for Fail {
    fn from(broken: Broken) -> Self {
        let text = match broken {
            Broken::Absent(_) => "Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'".to_owned(),
            Broken::Code(name, code) => format!("Cuda failure {code} in {name}"),
            Broken::Capture => "Cuda failure 901 'operation failed due to a previous error during capture'".to_owned(),
        };
        Self { code: Code::UnhandledCudaError, text }
    }
}
