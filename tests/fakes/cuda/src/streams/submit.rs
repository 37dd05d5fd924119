//! Submits work to a stream or its capture, and waits for streams.

use std::sync::Arc;

use super::recording::add;
use super::refusals::{forbid_in_context, forbid_in_stream};
use super::stream::{ContextStreams, Kind, Run, Stream};
use crate::abi::Result;
use crate::machine::context::Context;
use crate::work::piece::Work;

/// Enqueues work, or adds it to the graph of the stream's capture.
pub(crate) fn submit(stream: &Arc<Stream>, work: Work) -> Result {
    stream.context.check()?;
    if let Some(captured) = add(stream, &work) {
        return captured.map(|_| ());
    }
    stream.push(Run::Work(work));
    Ok(())
}

/// Waits for all earlier submissions to a stream.
pub(crate) fn synchronize(stream: &Arc<Stream>) -> Result {
    stream.context.check()?;
    forbid_in_stream(stream)?;
    let target = match stream.kind {
        // The legacy stream also waits for blocking streams, so this enqueues a marker that waits
        // for them.
        Kind::Legacy => stream.push(Run::Always(Box::new(|_| ()))),
        _ => stream.submitted(),
    };
    stream.wait_until(target);
    stream.context.check()
}

/// Waits for all work of all streams of a context.
pub(crate) fn synchronize_context(context: &Context) -> Result {
    context.check()?;
    forbid_in_context(context)?;
    let targets: Vec<_> = ContextStreams::of(context).live().into_iter().map(|stream| (stream.submitted(), stream)).collect();
    for (target, stream) in targets {
        stream.wait_until(target);
    }
    context.check()
}
