//! Begins, ends and queries the captures of streams.

use core::cell::Cell;
use core::ffi::{c_int, c_uint};

use crate::abi::{CuGraph, CuGraphNode, CuStream, In, Out};
use crate::calls::exports;
use crate::machine::current::current_handle;
use crate::streams::refusals::exchange_thread_mode;
use crate::streams::{captures, recording};
use crate::table;

thread_local! {
    /// The last query that found a stream not captured: the number of changes at that time, the
    /// stream, and the context.
    static NOT_CAPTURING: Cell<Option<(u64, usize, usize)>> = const { Cell::new(None) };
}

exports! {
    10010 fn cuStreamBeginCapture_v2(stream: CuStream, mode: c_int) {
        recording::begin(stream, mode)
    }

    10000 fn cuStreamEndCapture(stream: CuStream, graph: Out<CuGraph>) {
        recording::end(stream, &graph)
    }

    10000 fn cuStreamIsCapturing(stream: CuStream, status: Out<c_int>) {
        // While no state has changed, this returns the thread's cached answer. The query is then as
        // cheap as in the real driver, and does not dominate measurements.
        let asked = (table::changes(), stream.0, current_handle());
        if !captures::any() && NOT_CAPTURING.get() == Some(asked) {
            return status.set(0);
        }
        recording::info(stream, &status, &Out::nowhere(), &Out::nowhere(), &Out::nowhere(), &Out::nowhere())?;
        NOT_CAPTURING.set((status.get()? == 0).then_some(asked));
        Ok(())
    }

    11030 fn cuStreamGetCaptureInfo_v2(
        stream: CuStream, status: Out<c_int>, id: Out<u64>, graph: Out<CuGraph>, nodes: Out<usize>, count: Out<usize>,
    ) {
        recording::info(stream, &status, &id, &graph, &nodes, &count)
    }

    12030 fn cuStreamGetCaptureInfo_v3(
        stream: CuStream, status: Out<c_int>, id: Out<u64>, graph: Out<CuGraph>, nodes: Out<usize>, edges: Out<usize>,
        count: Out<usize>,
    ) {
        // Edges here carry no data.
        edges.set_if_wanted(0);
        recording::info(stream, &status, &id, &graph, &nodes, &count)
    }

    11030 fn cuStreamUpdateCaptureDependencies(stream: CuStream, nodes: In<CuGraphNode>, count: usize, flags: c_uint) {
        recording::update(stream, &nodes, count, flags)
    }

    12030 fn cuStreamUpdateCaptureDependencies_v2(
        stream: CuStream, nodes: In<CuGraphNode>, _edges: usize, count: usize, flags: c_uint,
    ) {
        recording::update(stream, &nodes, count, flags)
    }

    10010 fn cuThreadExchangeStreamCaptureMode(mode: Out<c_int>) {
        mode.set(exchange_thread_mode(mode.get()?)?)
    }
}
