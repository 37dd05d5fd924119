//! The turns of several communicators at once, for calls that NCCL gets together.
//!
//! One turn is `state.rs`. Invariant: turns are taken in one order in the whole process, so that
//! two threads cannot wait for each other.

use std::ops::Deref;
use std::sync::Arc;

use crate::library::error::{MisuseKind, NcclError};
use crate::member::membership::Inner;
use crate::member::state::{Allowed, Inside};

/// Communicators that this thread is inside of, each once.
pub(crate) enum Turns<'a> {
    /// Most often; a list of one would be an allocation.
    One([(&'a Arc<Inner>, Inside<'a>); 1]),
    Many(Vec<(&'a Arc<Inner>, Inside<'a>)>),
}

impl<'a> Turns<'a> {
    pub(crate) fn into_vec(self) -> Vec<(&'a Arc<Inner>, Inside<'a>)> {
        match self {
            Self::One(one) => one.into(),
            Self::Many(many) => many,
        }
    }
}

impl<'a> Deref for Turns<'a> {
    type Target = [(&'a Arc<Inner>, Inside<'a>)];

    fn deref(&self) -> &Self::Target {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}

/// Goes into several gates.
///
/// # Errors
/// As [`Inner::enter`]; [`NcclError::Misuse`] unless all are of one library, and all blocking or
/// all non-blocking.
pub(crate) fn enter_all<'a>(
    call: &'static str,
    allowed: Allowed,
    mut communicators: impl Iterator<Item = &'a Arc<Inner>> + Clone,
) -> Result<Turns<'a>, NcclError> {
    let rest = communicators.clone();
    let Some(first) = communicators.next() else { return Ok(Turns::Many(Vec::new())) };
    if communicators.all(|inner| Arc::ptr_eq(inner, first)) {
        return Ok(Turns::One([(first, first.enter(call, allowed)?)]));
    }
    enter_many(call, allowed, rest.collect()).map(Turns::Many)
}

fn enter_many<'a>(
    call: &'static str,
    allowed: Allowed,
    mut communicators: Vec<&'a Arc<Inner>>,
) -> Result<Vec<(&'a Arc<Inner>, Inside<'a>)>, NcclError> {
    communicators.sort_unstable_by_key(|inner| inner.name.number);
    communicators.dedup_by_key(|inner| inner.name.number);
    let first = communicators[0];
    let mut inside = Vec::with_capacity(communicators.len());
    for inner in communicators {
        if first.nccl != inner.nccl {
            let (found, expected) = (inner.nccl.shared_path(), first.nccl.shared_path());
            return Err(NcclError::misuse(call, MisuseKind::WrongLibrary { what: "a communicator", found, expected }));
        }
        if first.blocking != inner.blocking {
            let why = "NCCL wants them all blocking or all non-blocking";
            return Err(NcclError::misuse(call, MisuseKind::Combination { what: "the communicators", why }));
        }
        inside.push((inner, inner.enter(call, allowed)?));
    }
    Ok(inside)
}
