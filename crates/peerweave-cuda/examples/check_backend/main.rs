//! Checks the portable API on the GPUs of one machine. This program starts one process for each
//! GPU.
//!
//! `--part graphs` replays every collective, put, signal and wait in CUDA graphs, alternating with
//! the same calls in streams. `--part kills` kills a process at a random moment during random
//! collectives. The error of each other process must name the killed PE. These processes must then
//! continue by `World::shrink`, with correct results. Every wait has a time limit.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use peerweave_bootstrap::{Endpoint, Job, Server, ServerOptions, Token};

mod calls;
mod graphs;
mod kills;

#[derive(Parser)]
#[command(about = "Checks the portable API on GPUs; starts one process for each GPU")]
struct Arguments {
    /// The part of the checks to run.
    #[arg(long, value_enum, default_value_t = Part::Graphs)]
    part: Part,
    /// Number of GPUs, and thus of processes.
    #[arg(short, long, default_value_t = 2)]
    n: u32,
    /// Number of jobs in which a process is killed.
    #[arg(long, default_value_t = 30)]
    kills: u64,
    /// Seed of the random kill times and of the random calls.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Time limit of a wait, in seconds.
    #[arg(long, default_value_t = 10)]
    deadline: u64,
    /// PE, endpoint and token of this process. The process that starts the PEs passes them.
    #[arg(long, hide = true, num_args = 3)]
    pe: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Part {
    /// Checks collectives in graphs.
    Graphs,
    /// Kills processes, and checks that the other processes continue.
    Kills,
}

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.pe {
        Some(pe) => job(pe, arguments.n).and_then(|job| match arguments.part {
            Part::Graphs => graphs::run(&job, Duration::from_secs(arguments.deadline)),
            Part::Kills => kills::run(&job, Duration::from_secs(arguments.deadline), arguments.seed),
        }),
        None => match arguments.part {
            Part::Graphs => all_pass(&arguments),
            Part::Kills => kills::supervise(&arguments),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("check_backend: {error}");
            ExitCode::FAILURE
        }
    }
}

fn job(pe: &[String], n: u32) -> Outcome<Job> {
    let [pe, endpoint, token] = pe else { return Err("--pe needs three values: the PE, the endpoint and the token".into()) };
    Ok(Job::on_one_machine(pe.parse()?, n, endpoint.parse()?, token.parse()?))
}

/// The processes and the server of a job. Dropping this value kills the processes.
struct Started {
    _server: Server,
    children: Vec<Child>,
}

impl Drop for Started {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts one process for each PE. If `piped` is true, the output of the processes is piped to this
/// process.
fn start(arguments: &Arguments, seed: u64, piped: bool) -> Outcome<Started> {
    let token = Token::random()?;
    let server = Server::bind(&Endpoint::random_unix()?, token, arguments.n, ServerOptions::default())?;
    let mut started = Started { children: Vec::new(), _server: server };
    for pe in 0..arguments.n {
        let child = Command::new(std::env::current_exe()?)
            .args(["--part", &format!("{:?}", arguments.part).to_lowercase(), "-n", &arguments.n.to_string()])
            .args(["--seed", &seed.to_string(), "--deadline", &arguments.deadline.to_string(), "--pe", &pe.to_string()])
            .args([started._server.endpoint().to_string(), token.to_hex()])
            .stdout(if piped { Stdio::piped() } else { Stdio::inherit() })
            .spawn()?;
        started.children.push(child);
    }
    Ok(started)
}

/// Waits at most until `end` for the end of a process. Returns whether the process has succeeded.
fn ended(child: &mut Child, end: Instant) -> Outcome<bool> {
    while Instant::now() < end {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err("a process did not end before its time limit".into())
}

fn all_pass(arguments: &Arguments) -> Outcome {
    let mut started = start(arguments, arguments.seed, false)?;
    let end = Instant::now() + Duration::from_secs(120);
    for (pe, child) in started.children.iter_mut().enumerate() {
        if !ended(child, end)? {
            return Err(format!("PE {pe} failed").into());
        }
    }
    Ok(())
}

/// Returns the lines that a process prints, as an iterator that waits for each line.
fn lines(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines().map_while(Result::ok))
}
