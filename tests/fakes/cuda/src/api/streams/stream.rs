//! Creates, destroys and queries streams, waits for streams, and enqueues host functions.

use core::ffi::{c_int, c_uint, c_ulonglong, c_void};

use crate::abi::{Code, CuContext, CuDevice, CuStream, HostFn, Out, Result, StreamCallback};
use crate::calls::{as_host_function, exports, functions};
use crate::machine::current::current;
use crate::machine::driver::driver;
use crate::streams::captures;
use crate::streams::refusals::forbid_in_stream;
use crate::streams::stream::{GREATEST_PRIORITY, Kind, Run, STREAMS, Stream, resolve};
use crate::streams::submit::{submit, synchronize};
use crate::work::piece::Work;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

fn create(out: &Out<CuStream>, flags: c_uint, priority: c_int) -> Result {
    out.required()?;
    if flags > NON_BLOCKING {
        return Err(Code::INVALID_VALUE);
    }
    let kind = if flags == NON_BLOCKING { Kind::NonBlocking } else { Kind::Blocking };
    let stream = Stream::make(&current()?, kind, priority.clamp(GREATEST_PRIORITY, 0));
    out.set(CuStream(stream.handle))
}

fn launch_host_function(stream: CuStream, function: HostFn, data: *mut c_void) -> Result {
    let function = function.ok_or(Code::INVALID_VALUE)?;
    submit(&resolve(stream)?, Work::Host { function, data: data as usize })
}

exports! {
    2000 fn cuStreamCreate(stream: Out<CuStream>, flags: c_uint) {
        create(&stream, flags, 0)
    }

    5050 fn cuStreamCreateWithPriority(stream: Out<CuStream>, flags: c_uint, priority: c_int) {
        create(&stream, flags, priority)
    }

    4000 fn cuStreamDestroy_v2(stream: CuStream) {
        if stream.0 <= 2 {
            return Err(Code::INVALID_HANDLE);
        }
        driver()?;
        let found = STREAMS.find(stream.0)?;
        captures::invalidate(&found);
        STREAMS.remove(stream.0);
        // Queued work still runs: the thread keeps the stream alive until the queue is empty.
        found.close();
        Ok(())
    }

    2000 fn cuStreamSynchronize(stream: CuStream) {
        synchronize(&resolve(stream)?)
    }

    2000 fn cuStreamQuery(stream: CuStream) {
        let stream = resolve(stream)?;
        stream.context.check()?;
        forbid_in_stream(&stream)?;
        let behind = match stream.kind {
            Kind::Legacy => stream.live_of_context().iter().any(|other| other.kind == Kind::Blocking && !other.is_idle()),
            _ => false,
        };
        if behind || !stream.is_idle() { Err(Code::NOT_READY) } else { stream.context.check() }
    }

    10000 fn cuLaunchHostFunc(stream: CuStream, function: HostFn, data: *mut c_void) {
        launch_host_function(stream, function, data)
    }

    13020 fn cuLaunchHostFunc_v2(stream: CuStream, function: HostFn, data: *mut c_void, mode: c_uint) {
        if mode > 1 {
            return Err(Code::INVALID_VALUE);
        }
        launch_host_function(stream, function, data)
    }

    5000 fn cuStreamAddCallback(stream: CuStream, callback: StreamCallback, data: *mut c_void, flags: c_uint) {
        let callback = callback.ok_or(Code::INVALID_VALUE)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let given = stream;
        let stream = resolve(stream)?;
        // Callbacks cannot be captured.
        forbid_in_stream(&stream)?;
        let data = data as usize;
        stream.push(Run::Always(Box::new(move |error| {
            // SAFETY: the caller promised that the callback may be called once, on any thread, with
            // this data.
            as_host_function(|| unsafe { callback(given, error, data as *mut c_void) });
        })));
        Ok(())
    }

    5050 fn cuStreamGetPriority(stream: CuStream, priority: Out<c_int>) {
        priority.set(resolve(stream)?.priority)
    }

    5050 fn cuStreamGetFlags(stream: CuStream, flags: Out<c_uint>) {
        flags.set(c_uint::from(resolve(stream)?.kind == Kind::NonBlocking))
    }

    9020 fn cuStreamGetCtx(stream: CuStream, context: Out<CuContext>) {
        context.set(CuContext(resolve(stream)?.context.handle))
    }

    12050 fn cuStreamGetCtx_v2(stream: CuStream, context: Out<CuContext>, green: Out<usize>) {
        green.set(0)?;
        context.set(CuContext(resolve(stream)?.context.handle))
    }

    12080 fn cuStreamGetDevice(stream: CuStream, device: Out<CuDevice>) {
        device.set(resolve(stream)?.context.device as CuDevice)
    }

    12000 fn cuStreamGetId(stream: CuStream, id: Out<c_ulonglong>) {
        id.set(resolve(stream)?.id)
    }
}

functions! {
    /// Fake only: blocks the stream at this point until [`peerweave_fake_stream_unblock`], like a
    /// kernel that never ends.
    fn peerweave_fake_stream_block(stream: CuStream) {
        resolve(stream)?.block();
        Ok(())
    }

    /// Fake only: unblocks the stream.
    fn peerweave_fake_stream_unblock(stream: CuStream) {
        resolve(stream)?.unblock();
        Ok(())
    }
}
