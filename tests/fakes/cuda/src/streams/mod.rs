//! Streams, the graphs that captures of streams create, and the decision whether work is queued or
//! captured.

pub(crate) mod captures;
pub(crate) mod graph;
pub(crate) mod recording;
pub(crate) mod refusals;
pub(crate) mod stream;
pub(crate) mod submit;
