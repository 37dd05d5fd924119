//! Checks NVSHMEM on the GPUs of this machine: `check_nvshmem [--pes N] [--fault shared-gpu|missing|killed]`.
//!
//! Starts one process for each GPU. They run every operation for every element type, on every kind of team, and compare with what the host computes.
//! With a fault, the check is that every other PE gets an error that says what happened, in time. The last line is `OK n checks` or `FAILED ...`. No
//! wait is longer than 20 seconds. Multicast is switched off whatever the environment says.

mod oracle;
mod ordering;
mod scenarios;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use peerweave_bootstrap::{Endpoint, Job, Options, Rendezvous, Server, ServerOptions, Token};
use peerweave_driver::Driver;
use peerweave_nvshmem::{Context, NvshmemError, PreflightError, Settings};

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The longest wait.
const WAIT: Duration = Duration::from_secs(20);
/// After this the parent ends everything.
const WHOLE_RUN: Duration = Duration::from_secs(400);
/// Tells a child that it is one, and which fault it is to show.
const ROLE: &str = "PEERWEAVE_CHECK_ROLE";
/// How a child tells its parent how much it checked.
const CHECKS: &str = "checks: ";

fn main() -> ExitCode {
    if let Ok(fault) = std::env::var(ROLE) {
        return match child(&fault) {
            Ok(checks) => {
                println!("{CHECKS}{checks}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    match parent() {
        Ok(checks) => {
            println!("OK {checks} checks");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("FAILED {error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the PEs and adds up what they checked.
fn parent() -> Result<usize, Failure> {
    let (mut pes, mut fault) = (None, String::new());
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match (word.as_str(), words.next()) {
            ("--pes", Some(number)) => pes = Some(number.parse::<u32>()?),
            ("--fault", Some(name)) if ["shared-gpu", "missing", "killed"].contains(&name.as_str()) => fault = name,
            _ => return Err(format!("{word}: expected --pes N or --fault shared-gpu|missing|killed").into()),
        }
    }
    let driver = Driver::get()?;
    let n_pes = pes.unwrap_or(driver.device_count()? as u32);
    println!("driver for CUDA {}, {} devices, {n_pes} PEs", driver.version()?, driver.device_count()?);
    let token = Token::random()?;
    let server = Server::bind(&Endpoint::random_unix()?, token, n_pes, ServerOptions::default())?;
    let program = std::env::current_exe()?;
    let mut children = Children(Vec::new());
    let mut readers = Vec::new();
    for pe in 0..n_pes {
        let job = Job::on_one_machine(pe, n_pes, server.endpoint().clone(), token);
        let mut command = Command::new(&program);
        let mut child = command.env(ROLE, &fault).envs(job.to_vars()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("a child without output")?);
        readers.push(std::thread::spawn(move || {
            let mut checks = 0;
            for line in output.lines().map_while(Result::ok) {
                match line.strip_prefix(CHECKS).and_then(|number| number.parse::<usize>().ok()) {
                    Some(number) => checks += number,
                    None => println!("{line}"),
                }
            }
            checks
        }));
        children.0.push(child);
    }
    let start = Instant::now();
    let mut failed = Vec::new();
    for (pe, child) in children.0.iter_mut().enumerate() {
        loop {
            if let Some(status) = child.try_wait()? {
                let victim = fault == "killed" && pe == n_pes as usize - 1;
                if !status.success() && !victim {
                    failed.push(format!("PE {pe}: {status}"));
                }
                break;
            }
            if start.elapsed() > WHOLE_RUN {
                return Err(format!("PE {pe} was not done after {WHOLE_RUN:?}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let checks = readers.into_iter().filter_map(|reader| reader.join().ok()).sum();
    if failed.is_empty() { Ok(checks) } else { Err(failed.join(", ").into()) }
}

/// Processes that do not outlive this one's interest in them.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn settings() -> Settings {
    let settings = Settings::default().deadline(WAIT).disable_nvls(true);
    match std::env::var("NVSHMEM_REMOTE_TRANSPORT") {
        Ok(_) => settings,
        Err(_) => settings.remote_transport("none"),
    }
}

fn child(fault: &str) -> Result<usize, Failure> {
    let job = Job::from_env()?;
    let pe = job.pe;
    let with_pe = |error: Failure| -> Failure { format!("{pe}: {error}").into() };
    let rendezvous = Arc::new(Rendezvous::join(&job, Options { deadline: WAIT, ..Options::default() })?);
    let checks = match fault {
        "" => everything(&job, &rendezvous),
        _ => faulty(fault, &job, &rendezvous),
    };
    let checks = checks.map_err(with_pe)?;
    if fault.is_empty() {
        Arc::into_inner(rendezvous).ok_or("the context still has the rendezvous")?.leave()?;
    }
    Ok(checks)
}

fn everything(job: &Job, rendezvous: &Arc<Rendezvous>) -> Result<usize, Failure> {
    let device = peerweave_driver::context(job.local_pe as usize)?;
    let start = Instant::now();
    let context = Context::from_rendezvous(rendezvous, &device, settings())?;
    if job.pe.get() == 0 {
        let (major, minor) = context.library().specification()?;
        println!(
            "{:?}, {}, OpenSHMEM {major}.{minor}, started in {:.1?}",
            context.library(),
            context.library().name()?,
            start.elapsed()
        );
    }
    let mut checks = scenarios::Checks::new(&context, rendezvous)?;
    scenarios::run(&mut checks)?;
    ordering::run(&mut checks)?;
    let count = checks.finish()?;
    let report = context.finalize()?;
    // One scenario drops two buffers on purpose; alone there is nobody to disagree with, so one of them is freed.
    let dropped = if job.n_pes > 1 { 2 } else { 1 };
    if report.leaked.len() != dropped || report.other_handles != 0 {
        return Err(format!("the end found {report:?}, expected {dropped} leaks").into());
    }
    Ok(count + 1)
}

/// What must happen where something is wrong.
fn faulty(fault: &str, job: &Job, rendezvous: &Arc<Rendezvous>) -> Result<usize, Failure> {
    let last = job.pe.get() + 1 == job.n_pes;
    let ordinal = if fault == "shared-gpu" { 0 } else { job.local_pe as usize };
    let device = peerweave_driver::context(ordinal)?;
    let start = Instant::now();
    match fault {
        "missing" if last => {
            // Joined the job, and never starts NVSHMEM. The others must not wait for ever.
            std::thread::sleep(WAIT + Duration::from_secs(5));
            return Ok(0);
        }
        "missing" | "shared-gpu" => {
            let error = Context::from_rendezvous(rendezvous, &device, settings()).err().ok_or("it started")?;
            println!("{}: {error}", job.pe);
            let shared = matches!(&error, NvshmemError::Preflight(inner) if matches!(**inner, PreflightError::SharedGpu { .. }));
            let missing = error.to_string().contains(&format!("PE {}", job.n_pes - 1));
            if !(fault == "shared-gpu" && shared || fault == "missing" && missing) {
                return Err(format!("another error was expected than {error}").into());
            }
        }
        _ => {
            let context = Context::from_rendezvous(rendezvous, &device, settings())?;
            let world = context.world();
            world.barrier_blocking()?;
            if last {
                std::process::abort();
            }
            let error = world.barrier_blocking().err().ok_or("a barrier without one of the PEs was passed")?;
            println!("{}: {error}", job.pe);
            if !matches!(&error, NvshmemError::Timeout(timeout) if timeout.lost.is_some()) {
                return Err(format!("a timeout that names the lost PE was expected, not {error}").into());
            }
        }
    }
    if start.elapsed() > 2 * WAIT + Duration::from_secs(20) {
        return Err(format!("it took {:?}", start.elapsed()).into());
    }
    println!("{CHECKS}1");
    // SAFETY: it only ends the process. The GPU, and NVSHMEM's own clean-up, may wait for the one that is gone: there is to be none.
    unsafe { libc::_exit(0) }
}
