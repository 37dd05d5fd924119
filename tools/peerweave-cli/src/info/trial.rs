//! Starts two PEs that pass a barrier and exit. This trial shows whether PEs can connect. The
//! settings alone do not show this.

use std::time::Duration;

use peerweave::environment::names;
use serde::Serialize;

use crate::launch::rendezvous::{JobRendezvous, Place};
use crate::launch::{self, Launch, Observer, OnFailure, Output, Source, Stdin};
use peerweave_bench::workload::config::Config;
use peerweave_bench::workload::op::BenchOp;
use peerweave_bench::workload::record::{Ready, Record, monotonic_ns};

/// Outcome of the trial with two PEs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Trial {
    /// Whether both PEs passed their barriers and succeeded.
    pub works: bool,
    /// Output lines of the PEs that are not records, such as error messages, and the error of the
    /// launcher.
    pub complaints: Vec<String>,
    /// Time from the start of the first PE until both PEs have passed a barrier, in milliseconds.
    pub first_barrier_ms: Option<f64>,
    /// Instruction set that reductions use.
    pub compute: Option<String>,
    /// How ordinary buffers, which are not in symmetric memory, are transferred between the PEs.
    pub private_buffers: Option<String>,
}

/// Time after which the trial counts as failed.
const LIMIT: Duration = Duration::from_secs(10);

impl Trial {
    /// Starts two PEs, waits until they have ended, and returns the outcome.
    pub(super) fn run() -> Self {
        let mut output = TrialOutput::default();
        let started_at_ns = monotonic_ns();
        let ended = start(&mut output);
        let TrialOutput { ready, mut complaints, .. } = output;
        if let Err(error) = &ended {
            complaints.push(error.clone());
        }
        let last = ready.iter().map(|ready| ready.passed_at_ns).max();
        Self {
            works: ended == Ok(0) && ready.len() == 2,
            complaints,
            first_barrier_ms: last.map(|at| at.saturating_sub(started_at_ns) as f64 / 1e6),
            compute: ready.first().map(|ready| ready.compute.clone()),
            private_buffers: ready.first().map(|ready| ready.private_buffers.clone()),
        }
    }

    /// Returns the lines of the report, each as a name and a value.
    pub(super) fn lines(&self) -> Vec<(String, String)> {
        let line = |name: &str, value: String| (name.to_owned(), value);
        let unknown = || "unknown".to_owned();
        let mut lines = vec![line(
            "two PEs",
            match (self.works, self.first_barrier_ms) {
                (true, Some(ms)) => format!("connected and passed a barrier in {ms:.1} ms"),
                _ => "failed to connect or to pass a barrier".to_owned(),
            },
        )];
        lines.extend(self.complaints.iter().map(|complaint| line("", complaint.clone())));
        lines.push(line("computes with", self.compute.clone().unwrap_or_else(unknown)));
        lines.push(line(
            "private buffers",
            match self.private_buffers.as_deref() {
                Some("CrossMemoryAttach") => {
                    "read directly from the other process by cross-memory attach, which worked between the two PEs".to_owned()
                }
                Some("Staged") => "copied through shared memory (cross-memory attach was refused or is disabled)".to_owned(),
                Some(other) => other.to_owned(),
                None => unknown(),
            },
        ));
        lines
    }
}

fn start(output: &mut TrialOutput) -> Result<u8, String> {
    let config = Config::of_one_call(BenchOp::Barrier, 2);
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let rendezvous = JobRendezvous::start(&Place::ThisMachine, 2).map_err(|error| text(&error))?;
    let launch = Launch {
        program: std::env::current_exe().map_err(|error| text(&error))?,
        args: vec!["bench-pe".into(), serde_json::to_string(&config).map_err(|error| text(&error))?.into()],
        n_local: 2,
        first_pe: 0,
        n_pes: 2,
        machine: 0,
        n_machines: 1,
        env: [rendezvous.env(), vec![(names::BACKEND.into(), "host".into())]].concat(),
        timeout: Some(LIMIT),
        on_failure: OnFailure::Abort,
        stdin: Stdin::Nothing,
        direct_output: false,
    };
    output.rendezvous = Some(rendezvous);
    launch::supervise(&launch, output).map(|ending| ending.exit_code()).map_err(|error| text(&error))
}

#[derive(Default)]
struct TrialOutput {
    rendezvous: Option<JobRendezvous>,
    ready: Vec<Ready>,
    complaints: Vec<String>,
}

impl Observer for TrialOutput {
    fn line(&mut self, pe: usize, _: Source, line: &[u8], _: &mut Output) {
        match serde_json::from_slice(line) {
            Ok(Record::Ready(ready)) => self.ready.push(ready),
            Ok(Record::Measured(_) | Record::Note(_) | Record::Contenders(_) | Record::Compared(_)) => {}
            Err(_) => self.complaints.push(format!("PE {pe}: {}", String::from_utf8_lossy(line))),
        }
    }

    fn failed(&mut self, pe: usize, why: &str) -> Option<usize> {
        self.rendezvous.as_ref().and_then(|rendezvous| rendezvous.report_lost(pe, why))
    }

    fn name(&self) -> &'static str {
        "peerweave info"
    }
}
