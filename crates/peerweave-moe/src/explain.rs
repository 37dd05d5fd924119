//! Converts the failure of a kernel to an error that names the call which launched the kernel.

use crate::layout::{NO_SUCH_EXPERT, NOT_MAPPED, REPEATED_EXPERT};
use peerweave_core::Error;
use peerweave_types::Pe;

/// The values that error messages about an exchange contain: the total number of experts, and this
/// PE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    pub(crate) experts: usize,
    pub(crate) pe: Pe,
}

impl Words {
    /// Converts an error of a kernel of an exchange: replaces the name of the kernel by `call`, and
    /// adds a message that explains the kernel's exit code. If `call` is `None`, keeps the name of
    /// the kernel. If `error` is [`Error::Skipped`] because such a kernel failed, converts and
    /// returns the error of that kernel. Returns other errors unchanged.
    pub(crate) fn explain(self, call: Option<&'static str>, error: Error) -> Error {
        match error {
            Error::Skipped { because, .. } if is_of_an_exchange(&because) => self.explain(call, Error::clone(&because)),
            Error::Peer { call: kernel, team, pe, cause } if is_kernel(kernel) => {
                Error::Peer { call: call.unwrap_or(kernel), team, pe, cause }
            }
            Error::Kernel(mut failure) if is_kernel(failure.kernel) => {
                failure.kernel = call.unwrap_or(failure.kernel);
                if let Some(message) = failure.exit_code.and_then(|code| self.meaning(code)) {
                    failure.message = message;
                }
                Error::Kernel(failure)
            }
            error => error,
        }
    }

    fn meaning(self, code: u64) -> Option<String> {
        let Self { experts, pe } = self;
        let expert = code as u32 as i32;
        match code & !u64::from(u32::MAX) {
            NO_SUCH_EXPERT => {
                Some(format!("a token of {pe} has expert {expert}, expected a number in 0..{experts}, or -1 for no expert"))
            }
            REPEATED_EXPERT => {
                Some(format!("a token of {pe} lists expert {expert} twice, expected each of the {experts} experts at most once"))
            }
            NOT_MAPPED => Some(format!(
                "{pe} cannot access the memory of another rank; all ranks of the team must be on one machine, and their \
                     GPUs must have peer access to each other"
            )),
            _ => None,
        }
    }
}

fn is_kernel(name: &str) -> bool {
    name.starts_with("moe_")
}

fn is_of_an_exchange(error: &Error) -> bool {
    match error {
        Error::Kernel(failure) => is_kernel(failure.kernel),
        Error::Peer { call, .. } => is_kernel(call),
        Error::Skipped { because, .. } => is_of_an_exchange(because),
        _ => false,
    }
}
