//! Functions for streams and their work.

pub(super) mod capture;
pub(super) mod event;
pub(super) mod graph;
pub(super) mod launch;
pub(super) mod module;
pub(super) mod refused;
pub(super) mod stream;
pub(super) mod user_object;
pub(super) mod value;
