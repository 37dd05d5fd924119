//! Chooses a backend from the environment and the GPUs of this machine.

use crate::environment::{Request, Settings, names};
use peerweave_bootstrap::Job;
use peerweave_core::{Error, Misuse, MisuseKind};
use std::fmt;

/// A backend that [`World::from_env`](crate::World::from_env) can choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendKind {
    /// The host backend, on the shared memory of one machine.
    Host,
    /// The backend for GPUs (`peerweave-cuda`), with one GPU for each PE. Requires the feature
    /// `cuda`.
    Cuda,
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Cuda => "cuda",
        })
    }
}

/// The backend that [`World::from_env`](crate::World::from_env) chooses, and the reason for this
/// choice.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendChoice {
    /// The chosen backend.
    pub backend: BackendKind,
    /// The reason for the choice, as a clause, such as "PEERWEAVE_BACKEND=host" or "this process
    /// sees 4 GPUs, and the machine has 4 PEs".
    pub why: String,
}

impl fmt::Display for BackendChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.backend, self.why)
    }
}

impl BackendChoice {
    /// Returns the backend that [`World::from_env`](crate::World::from_env) would choose for a job
    /// in this environment and on this machine. Does not join the job.
    ///
    /// All PEs of a machine see the same GPUs and choose the same backend, unless the environments
    /// of the PEs differ. If PEs choose different backends, all PEs get an error when they join the
    /// job.
    ///
    /// # Errors
    /// [`Error::Misuse`] if one of Peerweave's variables has an invalid value, or if
    /// `PEERWEAVE_BACKEND` is `cuda` and this build lacks the feature `cuda`.
    ///
    /// ```
    /// use peerweave::BackendChoice;
    /// use peerweave::bootstrap::Job;
    ///
    /// println!("{}", BackendChoice::from_env(&Job::single())?); // "host: this build has no feature `cuda`"
    /// # Ok::<(), peerweave::Error>(())
    /// ```
    pub fn from_env(job: &Job) -> Result<Self, Error> {
        decide(Settings::from_env()?.backend.unwrap_or_default(), gpus, job.local_n_pes)
    }
}

/// Returns the number of GPUs that this process sees, or the reason why it sees none.
#[cfg(feature = "cuda")]
pub(crate) fn gpus() -> Option<Result<usize, String>> {
    Some(peerweave_cuda::visible_gpus().map_err(|error| error.to_string()))
}

/// Returns `None`, because this build has no backend for GPUs.
#[cfg(not(feature = "cuda"))]
pub(crate) fn gpus() -> Option<Result<usize, String>> {
    None
}

/// Chooses the backend from the request, the number of GPUs that this process sees, and the number
/// of PEs of the machine.
pub(crate) fn decide(
    request: Request,
    gpus: impl FnOnce() -> Option<Result<usize, String>>,
    local_n_pes: u32,
) -> Result<BackendChoice, Error> {
    let choice = |backend, why| Ok(BackendChoice { backend, why });
    if request == Request::Host {
        return choice(BackendKind::Host, format!("{}=host", names::BACKEND));
    }
    let pes = local_n_pes as usize;
    let found = match gpus() {
        None if request == Request::Cuda => {
            let (argument, found) = (names::BACKEND, "\"cuda\"".to_owned());
            let expected = "host or auto, because this build of `peerweave` lacks the feature `cuda`";
            return Err(Misuse { call: "World::from_env", kind: MisuseKind::Value { argument, found, expected } }.into());
        }
        None => return choice(BackendKind::Host, "this build has no feature `cuda`".to_owned()),
        Some(found) => found,
    };
    if request == Request::Cuda {
        return choice(BackendKind::Cuda, format!("{}=cuda", names::BACKEND));
    }
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    match found {
        Ok(found) => {
            let (gpus, all_pes, variable) = (count(found, "GPU"), count(pes, "PE"), names::BACKEND);
            if found >= pes {
                return choice(BackendKind::Cuda, format!("this process sees {gpus}, and the machine has {all_pes}"));
            }
            let why = format!(
                "this process sees {gpus}, and the machine has {all_pes}; set {variable}=cuda to use the GPUs nevertheless"
            );
            choice(BackendKind::Host, why)
        }
        Err(why) => choice(BackendKind::Host, format!("there is no GPU: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(request: Request, gpus: Option<Result<usize, String>>, pes: u32) -> BackendChoice {
        decide(request, || gpus, pes).unwrap()
    }

    #[test]
    fn auto_backend_is_cuda_if_there_is_a_gpu_for_each_pe() {
        let cuda = choose(Request::Auto, Some(Ok(4)), 4);
        assert_eq!(cuda.to_string(), "cuda: this process sees 4 GPUs, and the machine has 4 PEs");
        let host = choose(Request::Auto, Some(Ok(2)), 4);
        assert_eq!(host.backend, BackendKind::Host);
        assert!(host.why.contains("2 GPUs") && host.why.contains("4 PEs"), "{host}");
        let cuda = choose(Request::Auto, Some(Ok(1)), 1);
        assert_eq!(cuda.to_string(), "cuda: this process sees 1 GPU, and the machine has 1 PE");
        let host = choose(Request::Auto, Some(Err("libcuda.so.1 was not found".into())), 1);
        assert_eq!(host.to_string(), "host: there is no GPU: libcuda.so.1 was not found");
        let host = choose(Request::Auto, None, 1);
        assert_eq!(host.to_string(), "host: this build has no feature `cuda`");
    }

    #[test]
    fn requested_backend_is_chosen_regardless_of_the_gpu_count() {
        assert_eq!(choose(Request::Host, Some(Ok(8)), 1).to_string(), "host: PEERWEAVE_BACKEND=host");
        assert_eq!(choose(Request::Cuda, Some(Ok(1)), 4).to_string(), "cuda: PEERWEAVE_BACKEND=cuda");
    }

    #[test]
    fn request_for_cuda_fails_if_the_build_lacks_the_cuda_feature() {
        let error = decide(Request::Cuda, || None, 1).unwrap_err();
        assert!(error.misuse().is_some());
        assert_eq!(
            error.to_string(),
            "World::from_env: `PEERWEAVE_BACKEND` is \"cuda\", expected host or auto, because this build of `peerweave` lacks the feature `cuda`"
        );
    }
}
