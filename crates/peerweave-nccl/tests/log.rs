//! Tests of NCCL's log as `tracing` events, at the requested level. NCCL in a child process also
//! logs to this process, and does not write to files of the child.
#![cfg(target_os = "linux")]
#![allow(missing_docs, reason = "scenarios are named, not documented")]

mod common;

use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::*;
use peerweave_nccl::{
    DeviceCommRequirements, DeviceCommunicator, LogLevel, Nccl, NcclMem, PreMulSum, Rank, ReduceOp, Signal, Window, WindowKind,
};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

type Lines = Arc<Mutex<Vec<(Level, String)>>>;

/// Collects events with the target `nccl`, and new spans with the name `nccl`, as lines.
struct Collector(Lines);

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        if metadata.is_event() { metadata.target() == "nccl" } else { metadata.name() == "nccl" }
    }
    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((*event.metadata().level(), message.0));
    }
    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        let mut fields = Fields(String::new());
        attributes.record(&mut fields);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((*attributes.metadata().level(), fields.0));
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

fn collect() -> Lines {
    let lines = Lines::default();
    tracing::subscriber::set_global_default(Collector(Arc::clone(&lines))).expect("the process has no other subscriber");
    lines
}

/// Waits until a collected line has this level and contains `part`.
#[track_caller]
fn comes(lines: &Lines, level: Level, part: &str) {
    let end = Instant::now() + DEADLINE;
    loop {
        let found = lines.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if found.iter().any(|(found, text)| *found == level && text.contains(part)) {
            return;
        }
        assert!(Instant::now() < end, "no {part} in {found:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn has(lines: &Lines, part: &str) -> bool {
    lines.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|(_, text)| text.contains(part))
}

#[test]
fn nccl_log_lines_become_events_of_the_requested_level() {
    fakes(1).env("PEERWEAVE_FAKE_NCCL_FAIL", "ncclAllReduce:1=5,ncclAllReduce:2=5").run(|| {
        let lines = collect();
        let nccl = Nccl::load().expect("the fake library is found");
        // SAFETY: the only other thread of this process waits for this thread.
        unsafe { nccl.trace_log(LogLevel::Warn) }.expect("the system creates a pipe");
        let (comm, stream) = alone();
        let mut values = floats(&stream, &[1.0]);
        let reduce = |values: &mut _| comm.all_reduce_in_place(&stream, values, ReduceOp::Sum);
        reduce(&mut values).expect_err("the first call fails");
        comes(&lines, Level::WARN, "NCCL WARN ncclAllReduce: an injected fault");
        assert!(!has(&lines, "Init START"), "the line has a lower level");
        // SAFETY: NCCL's threads are idle, and do not read the environment.
        unsafe { nccl.trace_log(LogLevel::Info) }.expect("the pipe is reused");
        reduce(&mut values).expect_err("the second call fails");
        drop(alone());
        comes(&lines, Level::INFO, "rank 0 nranks 1 cudaDev 0 - Init START");
    });
}

/// Shell command that emulates NCCL in a child process. The command opens the file that the
/// variable names for writing, and writes one line.
const OPENS: &str = r#"printf 'node:7:7 [0] NCCL WARN %s\n' 'from a child' > "$NCCL_DEBUG_FILE""#;

#[test]
fn child_process_inherits_the_debug_log_settings() {
    fakes(1).run(|| {
        let lines = collect();
        let nccl = Nccl::load().expect("the fake library is found");
        // SAFETY: the only other thread of this process waits for this thread.
        unsafe { nccl.trace_log(LogLevel::Info) }.expect("the system creates a pipe");
        let name = std::env::var("NCCL_DEBUG_FILE").expect("the variable is set");
        let number: i32 =
            name.rsplit('/').next().and_then(|number| number.parse().ok()).expect("the path ends with a descriptor");
        let directory = tempfile::tempdir().expect("a temporary directory is created");
        let path = directory.path().join("of the child");
        std::fs::write(&path, "contents of the file").expect("the file is written");
        let file = std::fs::File::options().append(true).open(&path).expect("the file exists");
        let mut child = Command::new("/bin/sh");
        child.args(["-c", OPENS]);
        // SAFETY: `dup2` may be called between fork and exec. It makes the descriptor with this
        // number refer to the file, only in the child.
        unsafe {
            let descriptor = file.as_raw_fd();
            child.pre_exec(move || match libc::dup2(descriptor, number) {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            })
        };
        assert!(child.status().expect("the shell runs").success());
        assert_eq!(std::fs::read_to_string(&path).expect("the file exists"), "contents of the file");
        comes(&lines, Level::WARN, "from a child");
        // The pipe stays open after the child has ended.
        drop(alone());
        comes(&lines, Level::INFO, "Init START");
    });
}

#[test]
fn every_call_has_a_span_that_names_the_communicator() {
    fakes(2).run(|| {
        let lines = collect();
        let (comm, stream) = alone();
        let (mut values, send) = (floats(&stream, &[1.0]), floats(&stream, &[1.0]));
        let memory = NcclMem::from_slice(comm.nccl(), &stream, &[1.0f32; 8]).expect("memory is allocated");
        let registered = comm.register(&memory).expect("the memory is registered");
        let window = Window::register(&comm, &memory, WindowKind::SYMMETRIC)
            .expect("the window is registered")
            .expect("the fake has windows");
        drop(PreMulSum::new(&comm, 2.0f32).expect("the reduction is created"));
        let device =
            DeviceCommunicator::create(&comm, &DeviceCommRequirements::new()).expect("the device communicator is created");
        comm.all_reduce(&stream, &send, &mut values, ReduceOp::Sum).expect("the call is enqueued");
        comm.put_signal(&stream, &memory, Rank::new(0), &window, 0, Signal::default()).expect("the call is enqueued");
        comm.nccl()
            .group(|group| group.broadcast_in_place(&comm, &stream, &mut values, Rank::new(0)))
            .expect("the calls are enqueued");
        comm.wait(&stream, DEADLINE).expect("the work completes");
        comm.suspend().expect("the communicator is suspended");
        comm.resume().expect("the communicator is resumed");
        // SAFETY: no kernel was started.
        unsafe { device.destroy() }.expect("the communicator is live");
        registered.deregister(&stream, DEADLINE).expect("all ranks unregister");
        window.deregister(&stream, DEADLINE).expect("all ranks unregister");
        comm.split(Some(0), 0)
            .expect("the split succeeds")
            .expect("the rank is in a new communicator")
            .finalize(DEADLINE)
            .expect("the communicator ends");
        comm.revoke().expect("the revocation succeeds");
        comm.abort(DEADLINE).expect("the communicator ends");
        let found = lines.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let one = |call: &str| format!("call={call:?} communicator=1 rank=0 ");
        let many = |call: &str| format!("call={call:?} members=1 ");
        let calls = [
            "register",
            "PreMulSum::new",
            "ncclDevCommCreate",
            "all_reduce",
            "put_signal",
            "wait",
            "suspend",
            "resume",
            "ncclDevCommDestroy",
            "Registration::deregister",
            "Window::deregister",
            "revoke",
            "abort",
        ];
        let groups = ["init_all", "Window::register", "group", "split", "finalize"];
        for expected in calls.iter().map(|call| one(call)).chain(groups.iter().map(|call| many(call))) {
            assert!(found.contains(&(Level::TRACE, expected.clone())), "no {expected} in {found:#?}");
        }
    });
}
