//! Converts errors of the driver: every failure becomes `ncclUnhandledCudaError` with the name of
//! the function.

pub(crate) use peerweave_fake_common::driver::*;

use super::codes::{Code, Fail};

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
