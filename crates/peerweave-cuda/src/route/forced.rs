//! Methods that the caller chooses, which replace the choices of the route table.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};

use peerweave_collectives::Algorithm;
use peerweave_core::backend::CollectiveKind;

use super::decide::ROUTED;

/// A method by which a collective call can be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Method {
    /// Peerweave's kernels, with the algorithm that the route table chooses.
    Own,
    /// For all_reduce and reduce: Peerweave's kernels with one step. Every rank sends all its
    /// elements to every rank, and reduces the elements of all ranks.
    OneShot,
    /// For all_reduce and reduce: Peerweave's kernels with two steps. First, every rank reduces one
    /// part of the elements of all ranks. Then, every rank sends its reduced part to the ranks that
    /// need the result.
    TwoShot,
    /// For all_reduce, reduce and reduce_scatter: Peerweave's kernels that send data in chunks
    /// through rings.
    Chunked,
    /// For all_gather, all_to_all and reduce_scatter: Peerweave's kernels that send the parts as
    /// 16-byte lines. The content of a line shows whether it has arrived.
    Lines,
    /// For all_gather and all_to_all: Peerweave's kernels that send each part as a message.
    Messages,
    /// NCCL, if the backend may use NCCL for the call.
    Nccl,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 7] = [Self::Own, Self::OneShot, Self::TwoShot, Self::Chunked, Self::Lines, Self::Messages, Self::Nccl];

    /// Returns the name of this method in settings and in explanations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::OneShot => "one_shot",
            Self::TwoShot => "two_shot",
            Self::Chunked => "chunked",
            Self::Lines => "lines",
            Self::Messages => "messages",
            Self::Nccl => "nccl",
        }
    }

    /// Returns whether this method can carry out the operation `kind`.
    pub fn serves(self, kind: CollectiveKind) -> bool {
        use CollectiveKind::{AllGather, AllReduce, AllToAll, Reduce, ReduceScatter};
        match self {
            Self::Own | Self::Nccl => ROUTED.contains(&kind),
            Self::OneShot | Self::TwoShot => matches!(kind, AllReduce | Reduce),
            Self::Chunked => matches!(kind, AllReduce | Reduce | ReduceScatter),
            Self::Lines => matches!(kind, AllGather | AllToAll | ReduceScatter),
            Self::Messages => matches!(kind, AllGather | AllToAll),
        }
    }

    /// Returns the algorithm of all_reduce that this method requests. Returns `None` for methods
    /// that request no algorithm.
    pub(super) fn algorithm(self) -> Option<Algorithm> {
        match self {
            Self::OneShot => Some(Algorithm::OneShot),
            Self::TwoShot => Some(Algorithm::TwoShot),
            Self::Chunked => Some(Algorithm::Chunked),
            _ => None,
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error for a text that cannot be parsed as [`Forced`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a valid choice of methods (PEERWEAVE_ROUTE): {expected}")]
pub struct ForcedError {
    /// The text that was parsed.
    pub found: String,
    /// The reason why the text is invalid, and the values that were expected.
    pub expected: String,
}

/// For each operation, the method that the caller has chosen, or no choice. As text, choices have
/// the form `all_reduce=two_shot,all_to_all=nccl`. The text `all=own` chooses the method `own` for
/// every operation that this method can carry out.
///
/// If the chosen method is not possible for a call, the choice is ignored. For example, the staging
/// memory may be too small for an algorithm. The route table then determines the method, and the
/// call's [`Explanation`](crate::Explanation) has the reason.
///
/// ```
/// use peerweave_core::backend::CollectiveKind;
/// use peerweave_cuda::{Forced, Method};
///
/// let forced: Forced = "all_reduce=two_shot,all_to_all=nccl".parse()?;
/// assert_eq!(forced.get(CollectiveKind::AllToAll), Some(Method::Nccl));
/// assert_eq!(forced.get(CollectiveKind::Broadcast), None);
/// assert!("all_reduce=messages".parse::<Forced>().is_err(), "all_reduce has no such method");
/// # Ok::<(), peerweave_cuda::ForcedError>(())
/// ```
#[derive(Debug, Default)]
pub struct Forced([AtomicU8; CollectiveKind::ALL.len()]);

impl Forced {
    /// Returns the method that the caller has chosen for an operation. Returns `None` if the caller
    /// has chosen no method.
    pub fn get(&self, kind: CollectiveKind) -> Option<Method> {
        let code = self.0[kind as usize].load(Ordering::Relaxed);
        Method::ALL.get(usize::from(code).wrapping_sub(1)).copied()
    }

    /// Chooses a method for an operation, or removes the choice if `method` is `None`. Returns
    /// `false` and changes nothing if this method cannot carry out the operation.
    pub fn set(&self, kind: CollectiveKind, method: Option<Method>) -> bool {
        if method.is_some_and(|method| !method.serves(kind)) {
            return false;
        }
        let code = method.and_then(|method| Method::ALL.iter().position(|one| *one == method)).map_or(0, |at| at as u8 + 1);
        self.0[kind as usize].store(code, Ordering::Relaxed);
        true
    }
}

impl Clone for Forced {
    fn clone(&self) -> Self {
        let copy = Self::default();
        for kind in CollectiveKind::ALL {
            copy.set(kind, self.get(kind));
        }
        copy
    }
}

impl PartialEq for Forced {
    fn eq(&self, other: &Self) -> bool {
        CollectiveKind::ALL.iter().all(|kind| self.get(*kind) == other.get(*kind))
    }
}

impl Eq for Forced {}

impl FromStr for Forced {
    type Err = ForcedError;

    fn from_str(text: &str) -> Result<Self, ForcedError> {
        let refused = |expected: String| ForcedError { found: text.to_owned(), expected };
        let forced = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (operation, name) = part
                .split_once('=')
                .ok_or_else(|| refused(format!("{part:?} has no =, expected OPERATION=METHOD, such as all_reduce=two_shot")))?;
            let methods = Method::ALL.map(Method::name).join(", ");
            let method = Method::ALL.into_iter().find(|method| method.name() == name);
            let method = method.ok_or_else(|| refused(format!("{name:?} is not a method, expected one of {methods}")))?;
            let kinds: Vec<CollectiveKind> =
                ROUTED.into_iter().filter(|kind| operation == "all" || kind.name() == operation).collect();
            if kinds.is_empty() {
                let names = ROUTED.map(CollectiveKind::name).join(", ");
                return Err(refused(format!("{operation:?} is not an operation, expected \"all\" or one of {names}")));
            }
            if kinds.iter().filter(|kind| forced.set(**kind, Some(method))).count() == 0 {
                let has = |method: &Method| kinds.iter().any(|kind| Self::default().set(*kind, Some(*method)));
                let methods: Vec<&str> = Method::ALL.into_iter().filter(has).map(Method::name).collect();
                return Err(refused(format!("{operation} has no method {name}, expected one of {}", methods.join(", "))));
            }
        }
        Ok(forced)
    }
}

impl fmt::Display for Forced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = ROUTED.into_iter().filter_map(|kind| Some((kind, self.get(kind)?)));
        for (at, (kind, method)) in set.enumerate() {
            write!(f, "{}{}={method}", if at == 0 { "" } else { "," }, kind.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_of_forced_methods_round_trips_through_text() {
        let forced: Forced = " all=own, all_reduce=chunked,".parse().unwrap();
        assert_eq!(forced.get(CollectiveKind::AllReduce), Some(Method::Chunked));
        assert_eq!(forced.get(CollectiveKind::Scatter), Some(Method::Own));
        assert_eq!(forced.to_string().parse::<Forced>().unwrap(), forced);
        assert_eq!("".parse::<Forced>().unwrap(), Forced::default());
        let all: Forced = "all=messages".parse().unwrap();
        assert_eq!(all.to_string(), "all_gather=messages,all_to_all=messages");
    }

    #[test]
    fn parse_error_of_a_method_choice_quotes_the_invalid_text() {
        for (text, expected) in [
            ("all_reduce", "has no ="),
            ("all_reduce=fast", "expected one of own, one_shot"),
            ("barrier=own", "expected \"all\" or one of all_reduce"),
            ("broadcast=two_shot", "broadcast has no method two_shot"),
        ] {
            let error = text.parse::<Forced>().unwrap_err().to_string();
            assert!(error.contains(text) && error.contains(expected), "{error}");
        }
    }
}
