//! PyTorch's symmetric memory as a contender of a comparison. PyTorch runs in separate processes,
//! after the other contenders. These processes run a script of this crate and print records in the
//! same form as PEs.

use std::time::Duration;

use peerweave_types::{DType, ReduceOp};
use serde_json::json;

use crate::launch::{self, Ending, Launch, Observer, OnFailure, Output, Source, Stdin};
use peerweave_bench::console::exit;
use peerweave_bench::workload::config::Config;
use peerweave_bench::workload::op::BenchOp;
use peerweave_bench::workload::record::{Compared, Contenders, Record};

const SCRIPT: &str = include_str!("torch.py");
const NAME: &str = "torch";
/// File name of the Python interpreter, which is looked up in `PATH`.
const PYTHON: &str = "python3";

/// Measures PyTorch for a comparison of libraries (contenders). Returns a list of contenders whose
/// only entry is PyTorch, and the measured times. If PyTorch cannot be measured, the entry contains
/// the reason, and there are no times.
pub(super) fn measure(config: &Config, timeout: Option<Duration>) -> (Contenders, Vec<Compared>) {
    let absent =
        |why: String| (Contenders { present: Vec::new(), absent: vec![(NAME.to_owned(), why)], arch: String::new() }, Vec::new());
    if let Some(why) = lacks(config) {
        return absent(why.to_owned());
    }
    // The processes of PyTorch connect through this file, which must not exist before they start.
    let store = std::env::temp_dir().join(format!("peerweave-torch-{}", std::process::id()));
    let _ = std::fs::remove_file(&store);
    let cases = config.cases().into_iter().enumerate();
    let cases = cases.map(|(row, case)| json!({ "row": row, "count": case.counts.param, "type": case.dtype.name() }));
    let request = json!({
        "store": store,
        "graph": config.graph,
        "iters": config.iters,
        "batches": config.batches,
        "batch_ms": config.batch_ms,
        "warmup": config.warmup,
        "check": config.check,
        "cases": cases.collect::<Vec<_>>(),
    });
    let launch = Launch {
        program: PYTHON.into(),
        args: vec!["-c".into(), SCRIPT.into(), request.to_string().into()],
        n_local: config.n_pes,
        first_pe: 0,
        n_pes: config.n_pes,
        machine: 0,
        n_machines: 1,
        env: Vec::new(),
        timeout,
        stdin: Stdin::Nothing,
        direct_output: false,
        on_failure: OnFailure::Abort,
    };
    let mut records = Records::default();
    let ending = launch::supervise(&launch, &mut records);
    let _ = std::fs::remove_file(&store);
    match (ending, records.contenders) {
        (Err(error), _) => absent(error.to_string()),
        (Ok(ending), Some(contenders)) if ending.exit_code() == exit::OK => (contenders, records.compared),
        (Ok(ending), _) => absent(format!("the processes of PyTorch failed: {}", why(&ending, &records.last_complaint))),
    }
}

/// Returns a message that says why the processes failed: how they ended, and their last output line
/// that is not a record (a measurement as JSON).
fn why(ending: &Ending, last_complaint: &str) -> String {
    let how = match &ending.failure {
        _ if ending.timed_out => "--timeout expired".to_owned(),
        Some(failure) => format!("PE {} {}", failure.pe, failure.status),
        None => "all processes ended, but the launcher did not receive all results".to_owned(),
    };
    if last_complaint.is_empty() { how } else { format!("{how}; the last output line that is not a result: {last_complaint}") }
}

/// Returns the reason why PyTorch's symmetric memory cannot run a configuration, if any.
fn lacks(config: &Config) -> Option<&'static str> {
    let types = config.dtypes.iter().filter_map(|number| DType::from_u8(*number));
    let is_known = |dtype: DType| matches!(dtype, DType::F16 | DType::BF16 | DType::F32);
    if config.op != BenchOp::AllReduce || config.redops != [ReduceOp::Sum as u8] {
        return Some("PyTorch's symmetric memory supports only all-reduce with the reduction sum");
    }
    if !types.into_iter().all(is_known) {
        Some("PyTorch's symmetric memory supports only half, bfloat16 and float")
    } else {
        None
    }
}

/// Reads the output of the processes of PyTorch: collects the records, and keeps the last line that
/// is not a record.
#[derive(Default)]
struct Records {
    contenders: Option<Contenders>,
    compared: Vec<Compared>,
    /// The latest output line that is not one of the expected records, for use in an error message;
    /// empty if there was no such line.
    last_complaint: String,
}

impl Observer for Records {
    fn line(&mut self, pe: usize, _: Source, line: &[u8], _: &mut Output) {
        match serde_json::from_slice(line) {
            Ok(Record::Contenders(contenders)) => self.contenders = Some(contenders),
            Ok(Record::Compared(one)) if one.contender == NAME => self.compared.push(one),
            _ => self.last_complaint = format!("PE {pe}: {}", String::from_utf8_lossy(line)),
        }
    }

    fn failed(&mut self, _: usize, _: &str) -> Option<usize> {
        None
    }

    fn name(&self) -> &'static str {
        "peerweave bench: torch"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{Failure, Status};

    #[test]
    fn error_explains_why_the_torch_processes_failed() {
        let ended = |status| Ending { failure: Some(Failure { pe: 1, status }), ..Ending::default() };
        assert_eq!(why(&ended(Status::Code(3)), ""), "PE 1 exited with status 3");
        assert_eq!(
            why(&ended(Status::Code(1)), "PE 0: no GPU"),
            "PE 1 exited with status 1; the last output line that is not a result: PE 0: no GPU"
        );
        assert_eq!(why(&Ending { timed_out: true, ..Ending::default() }, ""), "--timeout expired");
        assert_eq!(why(&Ending::default(), ""), "all processes ended, but the launcher did not receive all results");
    }
}
