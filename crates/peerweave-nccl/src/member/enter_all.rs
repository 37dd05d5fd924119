//! Acquires the gates (locks) of several communicators, for calls that NCCL receives together.
//!
//! `state.rs` implements the gate. Invariant: all threads of the process acquire gates in the same
//! order, so two threads cannot deadlock.

use std::ops::Deref;
use std::sync::Arc;

use crate::library::error::{MisuseKind, NcclError};
use crate::member::membership::Inner;
use crate::member::state::{Allowed, Inside};

/// Communicators whose locks this thread has acquired. Each communicator occurs once.
pub(crate) enum Entered<'a> {
    /// Exactly one communicator, which is the common case. This variant allocates no list.
    One([(&'a Arc<Inner>, Inside<'a>); 1]),
    Many(Vec<(&'a Arc<Inner>, Inside<'a>)>),
}

impl<'a> Entered<'a> {
    pub(crate) fn into_vec(self) -> Vec<(&'a Arc<Inner>, Inside<'a>)> {
        match self {
            Self::One(one) => one.into(),
            Self::Many(many) => many,
        }
    }
}

impl<'a> Deref for Entered<'a> {
    type Target = [(&'a Arc<Inner>, Inside<'a>)];

    fn deref(&self) -> &Self::Target {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}

/// Acquires the locks of all communicators. A communicator may occur several times.
///
/// # Errors
/// As for [`Inner::enter`]. [`NcclError::Misuse`] if the communicators belong to different NCCL
/// libraries, or if some are blocking and others are non-blocking.
pub(crate) fn enter_all<'a>(
    call: &'static str,
    allowed: Allowed,
    mut communicators: impl Iterator<Item = &'a Arc<Inner>> + Clone,
) -> Result<Entered<'a>, NcclError> {
    let rest = communicators.clone();
    let Some(first) = communicators.next() else { return Ok(Entered::Many(Vec::new())) };
    if communicators.all(|inner| Arc::ptr_eq(inner, first)) {
        return Ok(Entered::One([(first, first.enter(call, allowed)?)]));
    }
    enter_many(call, allowed, rest.collect()).map(Entered::Many)
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
            let why = "some communicators are blocking and others are non-blocking, expected all blocking or all non-blocking";
            return Err(NcclError::misuse(call, MisuseKind::Combination { what: "the communicators", why }));
        }
        inside.push((inner, inner.enter(call, allowed)?));
    }
    Ok(inside)
}
