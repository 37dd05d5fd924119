//! A PE aborts the job under `peerweave run`, and with torchrun's variables. The launcher returns
//! the code of the abort, and every process exits with this code.
//!
//! A copy of this program is a PE if [`CODE`] is set.

use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use peerweave::World;
use peerweave_tests::named;

/// Variable with the code that the last PE passes to `abort`. The other PEs sleep.
const CODE: &str = "PEERWEAVE_TEST_ABORT";

/// Time within which a job must end: far less than the time that its PEs sleep.
const SOON: Duration = Duration::from_secs(15);

fn main() -> ExitCode {
    match std::env::var(CODE) {
        Ok(code) => pe(code.parse().expect("the variable is an exit code")),
        Err(_) => peerweave_tests::main(
            &[],
            named![run_exits_with_the_status_of_world_abort, torchrun_processes_exit_with_the_status_of_world_abort],
        ),
    }
}

fn pe(code: u8) -> ! {
    let world = World::from_env().expect("the PE joins the job");
    if world.my_pe().index() + 1 == world.n_pes() {
        let returned = world.abort(code);
        unreachable!("abort returned {returned}");
    }
    std::thread::sleep(Duration::from_secs(60));
    unreachable!("the job was not aborted");
}

fn this_program() -> std::path::PathBuf {
    std::env::current_exe().expect("the path of this program is known")
}

fn run_exits_with_the_status_of_world_abort() {
    for (n_pes, code) in [(1, 3), (2, 0), (3, 7), (8, 255)] {
        let started = Instant::now();
        let mut command = Command::new(env!("CARGO_BIN_EXE_peerweave"));
        command.args(["run", "-n", &n_pes.to_string(), "--"]).arg(this_program());
        let output = command.env(CODE, code.to_string()).env_remove("PEERWEAVE_PE").stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{n_pes} PEs: {text}");
        // The launcher is notified of an abort through the rendezvous, which a single PE does not
        // use.
        if n_pes > 1 {
            let due = format!("PE {} aborted the job with status {code}", n_pes - 1);
            assert_eq!(text.matches(&due).count(), usize::from(code != 0), "{n_pes} PEs: {text}");
            assert!(!text.contains("exited with status"), "{n_pes} PEs: {text}");
        }
        // No PE was killed, and no PE continued.
        assert!(!text.contains("signal") && !text.contains("panicked"), "{n_pes} PEs: {text}");
        assert!(started.elapsed() < SOON, "{n_pes} PEs: {:?}", started.elapsed());
    }
}

/// Starts the processes as torchrun does: PE 0 runs the rendezvous.
fn torchrun_processes_exit_with_the_status_of_world_abort() {
    for (n_pes, code) in [(2, 0), (3, 7)] {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let started = Instant::now();
        let start = |pe: i32| {
            let mut command = Command::new(this_program());
            command.env(CODE, code.to_string()).env_remove("PEERWEAVE_PE").stdin(Stdio::null()).stderr(Stdio::piped());
            let [rank, size] = [pe, n_pes].map(|number| number.to_string());
            command.env("RANK", &rank).env("LOCAL_RANK", &rank).env("WORLD_SIZE", &size).env("LOCAL_WORLD_SIZE", &size);
            command.env("GROUP_RANK", "0").env("GROUP_WORLD_SIZE", "1").env("TORCHELASTIC_RUN_ID", format!("abort-{port}"));
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
            command.spawn().unwrap()
        };
        let processes: Vec<Child> = (0..n_pes).map(start).collect();
        for (pe, process) in processes.into_iter().enumerate() {
            let output = process.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "PE {pe} of {n_pes}: {text}");
        }
        assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    }
}
