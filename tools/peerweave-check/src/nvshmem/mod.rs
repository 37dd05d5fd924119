//! Checks NVSHMEM: `check nvshmem [--pes N] [--only PART | --fault FAULT]`.
//!
//! Starts one process for each GPU. If a launcher has started the command, as in
//! `peerweave run -n 4 -- check nvshmem`, the process is one PE of that job. The parts are
//! `operations` (every operation for every element type, on every kind of team, compared with the
//! host), `blocking` (calls that return when they are complete), `ordering` (collectives of a team
//! on several streams and threads), `mistakes` (wrong calls, which must return typed errors),
//! `outside` (memory that NVSHMEM did not allocate) and `lifetimes` (drops in any order, finalize
//! with live objects, restart). Without `--only` all parts run.
//! The faults are `shared-gpu`, `missing` (a PE that does not start NVSHMEM), `killed` (a PE that
//! is killed), `no-library` and `no-plugins` (only on the last PE). With a fault, the command
//! checks that every other PE gets, within a time limit, an error that describes the fault. If a
//! launcher started the PEs, the last line of each PE contains the number of the PE. For PE 0, the
//! line is `PE 0: OK n checks` or `FAILED PE 0: ...`. Waits inside NVSHMEM calls end after 20
//! seconds. Multicast is always disabled, even if the environment enables it.
//!
//! If the command started the PEs, it prints a table before its last line. For each part of the
//! check, the table shows the number of PEs that passed the part, the number of checks, and the
//! duration on the slowest PE. After 400 seconds the command kills all PEs. After 420 seconds every
//! process ends itself.

mod blocking;
mod lifetimes;
mod mistakes;
mod oracle;
mod ordering;
mod outside;
mod scenarios;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use peerweave_bootstrap::{Job, Launcher, Options, Rendezvous};
use peerweave_driver::Driver;
use peerweave_nvshmem::{Context, Nvshmem, NvshmemError, PreflightError, Settings};

use crate::table::Table;
use crate::{Failure, launch};

/// Deadline of each wait in a call of NVSHMEM or of the rendezvous.
const WAIT: Duration = Duration::from_secs(20);
/// Time after which the parent process ends all PEs.
const WHOLE_RUN: Duration = Duration::from_secs(400);
const PARTS: [&str; 6] = ["operations", "blocking", "ordering", "mistakes", "outside", "lifetimes"];
const FAULTS: [&str; 5] = ["shared-gpu", "missing", "killed", "no-library", "no-plugins"];
/// Text before the number of checks in the last line of a PE, as in `PE 0: OK 12 checks`.
const OK: &str = "OK ";
/// Name of the hidden option that prints the path of NVSHMEM's library.
const WHERE: &str = "where";

/// The options of `check nvshmem`. The command disables multicast.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Number of processes to start; default: one for each GPU
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pes: Option<u32>,
    /// Run only this part of the check
    #[arg(long, value_name = "PART", value_parser = PARTS)]
    only: Option<String>,
    /// Cause this fault on the last PE, and check the errors of the other PEs
    #[arg(long, value_name = "FAULT", value_parser = FAULTS, conflicts_with = "only")]
    fault: Option<String>,
    /// Print the path of NVSHMEM's library and exit. For the fault no-plugins, the last PE needs
    /// this path but must not load the library, so a child process prints the path
    #[arg(long = WHERE, hide = true)]
    place: bool,
}

/// A part of the check that one PE has passed: its name, its number of checks and its duration.
struct Passed {
    part: String,
    checks: usize,
    seconds: f64,
}

impl Passed {
    const MARK: &str = "PASSED ";

    fn say(part: &str, checks: usize, took: Duration) {
        println!("{}{part} {checks} {:.1}", Self::MARK, took.as_secs_f64());
    }

    fn read(line: &str) -> Option<Self> {
        let [part, checks, seconds] = line.strip_prefix(Self::MARK)?.split(' ').collect::<Vec<_>>().try_into().ok()?;
        Some(Self { part: part.to_owned(), checks: checks.parse().ok()?, seconds: seconds.parse().ok()? })
    }

    /// Prints a table with one row for each part of the check. A row shows how many PEs passed the
    /// part, how many checks these PEs made in the part, and the duration on the slowest PE.
    fn print(all: &[Self]) {
        let mut table = Table::new(&["part", "PEs", "checks", "seconds"]);
        for part in PARTS {
            let of_part: Vec<&Self> = all.iter().filter(|passed| passed.part == part).collect();
            if !of_part.is_empty() {
                let checks: usize = of_part.iter().map(|passed| passed.checks).sum();
                let slowest = of_part.iter().map(|passed| passed.seconds).fold(0.0, f64::max);
                table.row([part.to_owned(), of_part.len().to_string(), checks.to_string(), format!("{slowest:.1}")]);
            }
        }
        table.print();
    }
}

/// Runs `check nvshmem`. If a launcher started this process, this process is one PE. Otherwise this
/// process starts all PEs. Returns the text that this process prints as its last line.
pub(crate) fn run(asked: &Arguments) -> Result<String, Failure> {
    if asked.place {
        return Ok(Nvshmem::load()?.path().display().to_string());
    }
    launch::end_after(WHOLE_RUN + WAIT);
    let job = Job::from_env()?;
    if job.launcher == Launcher::Single {
        return Ok(format!("OK {} checks", parent(asked)?));
    }
    let checks = as_pe(asked, &job)?;
    Ok(done(&job, checks))
}

/// Returns the text that a PE prints as its last line if its checks succeeded.
fn done(job: &Job, checks: usize) -> String {
    format!("{}: {OK}{checks} checks", job.pe)
}

/// Starts the PEs and waits for them. Returns the total number of checks of all PEs.
fn parent(asked: &Arguments) -> Result<usize, Failure> {
    let driver = Driver::get()?;
    let n_pes = asked.pes.unwrap_or(driver.device_count()? as u32);
    println!("driver for CUDA {}, devices: {}, PEs: {n_pes}", driver.version()?, driver.device_count()?);
    let ended = launch::processes(n_pes, WHOLE_RUN, |line| Passed::read(line).is_some() || checks_of(line).is_some())?;
    let lines: Vec<&String> = ended.iter().flat_map(|ended| &ended.kept).collect();
    Passed::print(&lines.iter().filter_map(|line| Passed::read(line)).collect::<Vec<_>>());
    let is_victim = |pe: usize| asked.fault.as_deref() == Some("killed") && pe + 1 == n_pes as usize;
    let failed = ended.iter().enumerate().filter(|(pe, ended)| !ended.status.success() && !is_victim(*pe));
    let failed: Vec<_> = failed.map(|(pe, ended)| format!("PE {pe}: {}", ended.status)).collect();
    let checks = lines.iter().filter_map(|line| checks_of(line)).sum();
    if failed.is_empty() { Ok(checks) } else { Err(failed.join(", ").into()) }
}

/// Returns the number of checks that the last line of a PE contains, as in `PE 0: OK 12 checks`.
/// Returns `None` for any other line.
fn checks_of(line: &str) -> Option<usize> {
    line.split_once(OK).and_then(|(_, rest)| rest.strip_suffix(" checks")?.parse().ok())
}

fn settings() -> Settings {
    let settings = Settings::default().deadline(WAIT).disable_nvls(true);
    match std::env::var("NVSHMEM_REMOTE_TRANSPORT") {
        Ok(_) => settings,
        Err(_) => settings.remote_transport("none"),
    }
}

/// Runs one PE. Returns the number of its checks.
fn as_pe(asked: &Arguments, job: &Job) -> Result<usize, Failure> {
    let with_pe = |error: Failure| -> Failure { format!("{}: {error}", job.pe).into() };
    let rendezvous = Arc::new(Rendezvous::join(job, Options { deadline: WAIT, ..Options::default() })?);
    if let Some(fault) = &asked.fault {
        faulty(fault, job, &rendezvous).map_err(with_pe)?;
        // Exits without cleanup, because the GPU and NVSHMEM's own cleanup may wait for the lost
        // PE.
        println!("{}", done(job, 1));
        // SAFETY: the call only ends the process.
        unsafe { libc::_exit(0) }
    }
    let checks = everything(asked.only.as_deref(), job, &rendezvous).map_err(with_pe)?;
    Arc::into_inner(rendezvous).ok_or("the finalized context still owns the rendezvous")?.leave()?;
    Ok(checks)
}

fn everything(only: Option<&str>, job: &Job, rendezvous: &Arc<Rendezvous>) -> Result<usize, Failure> {
    type Part = fn(&mut scenarios::Checks<'_>) -> Result<(), Failure>;
    let all: [(&str, Part); 5] = [
        ("operations", scenarios::run),
        ("blocking", blocking::run),
        ("ordering", ordering::run),
        ("mistakes", mistakes::run),
        ("outside", outside::run),
    ];
    let asked = |part: &str| only.is_none_or(|only| only == part);
    let parts: Vec<_> = all.into_iter().filter(|(part, _)| asked(part)).collect();
    let mut count = 0;
    let lifetimes = || {
        let start = Instant::now();
        let count = lifetimes::run(job, rendezvous).map_err(|error| format!("part lifetimes: {error}"))?;
        Passed::say("lifetimes", count, start.elapsed());
        Ok::<_, Failure>(count)
    };
    if parts.is_empty() {
        return lifetimes();
    }
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
    let mut left = 0;
    for (part, run) in parts {
        let (start, before) = (Instant::now(), checks.count());
        run(&mut checks).map_err(|error| format!("part {part}: {error}"))?;
        Passed::say(part, checks.count() - before, start.elapsed());
        // One check of `mistakes` deliberately leaks an allocation, so `finalize` must report this
        // leak.
        left += usize::from(part == "mistakes");
    }
    count += checks.finish()?;
    let report = context.finalize()?;
    if report.leaked.len() != left || report.other_handles != 0 {
        return Err(format!("finalize reported {report:?}, expected {left} leaked allocations and no other handles").into());
    }
    count += 1;
    if asked("lifetimes") {
        count += lifetimes()?;
    }
    Ok(count)
}

/// Makes this PE find no NVSHMEM library (`no-library`), or a copy of the library without its
/// plug-ins (`no-plugins`). For this, sets `PEERWEAVE_NVSHMEM_PATH` and returns its new value. Does
/// nothing and returns `None` for other faults.
fn spoil(fault: &str, job: &Job) -> Result<Option<PathBuf>, Failure> {
    let place = match fault {
        "no-library" => std::env::temp_dir().join("there-is-no-nvshmem-here"),
        "no-plugins" => {
            // A directory with the library alone, without its plug-ins.
            let alone = std::env::temp_dir().join(format!("check-nvshmem-{}-{}", std::process::id(), job.pe.get()));
            std::fs::create_dir_all(&alone)?;
            let finder =
                std::process::Command::new(std::env::current_exe()?).args(["nvshmem", &format!("--{WHERE}")]).output()?;
            let library = String::from_utf8(finder.stdout)?;
            std::fs::copy(library.trim(), alone.join("libnvshmem_host.so.3"))?;
            alone
        }
        _ => return Ok(None),
    };
    // SAFETY: no other thread of this process reads the environment through C at this time.
    unsafe { std::env::set_var("PEERWEAVE_NVSHMEM_PATH", &place) };
    Ok(Some(place))
}

/// Causes `fault` on the last PE. Checks that every other PE gets the error that describes `fault`.
fn faulty(fault: &str, job: &Job, rendezvous: &Arc<Rendezvous>) -> Result<(), Failure> {
    let last = job.pe.get() + 1 == job.n_pes;
    let ordinal = if fault == "shared-gpu" { 0 } else { job.local_pe as usize };
    let device = peerweave_driver::context(ordinal)?;
    let start = Instant::now();
    let made = if last { spoil(fault, job)? } else { None };
    match fault {
        "missing" if last => {
            // This PE joins the job, but never starts NVSHMEM. The other PEs must not wait forever.
            std::thread::sleep(WAIT + Duration::from_secs(5));
            // SAFETY: the call only ends the process.
            unsafe { libc::_exit(0) }
        }
        "missing" | "shared-gpu" | "no-library" | "no-plugins" => {
            let error = Context::from_rendezvous(rendezvous, &device, settings())
                .err()
                .ok_or_else(|| format!("NVSHMEM started despite the fault {fault}, expected an error"))?;
            println!("{}: {error}", job.pe);
            let named = error.to_string().contains(&format!("PE {}", job.n_pes - 1));
            let right = match (fault, &error) {
                ("shared-gpu", NvshmemError::Preflight(inner)) => matches!(**inner, PreflightError::SharedGpu { .. }),
                ("missing", NvshmemError::Bootstrap { .. } | NvshmemError::Timeout(_)) => named,
                ("no-library", NvshmemError::Load(_)) | ("no-plugins", NvshmemError::Plugin(_)) => last,
                ("no-library" | "no-plugins", NvshmemError::Preflight(inner)) => {
                    named && !last && matches!(**inner, PreflightError::Peer { .. })
                }
                _ => false,
            };
            if !right {
                return Err(format!("the error does not describe the fault {fault}: {error}").into());
            }
        }
        _ => {
            let context = Context::from_rendezvous(rendezvous, &device, settings())?;
            let world = context.world();
            world.barrier_blocking()?;
            if last {
                std::process::abort();
            }
            let error = world.barrier_blocking().err().ok_or("a barrier succeeded, expected an error because a PE was killed")?;
            println!("{}: {error}", job.pe);
            if !matches!(&error, NvshmemError::Timeout(timeout) if timeout.lost.is_some()) {
                return Err(format!("the barrier failed with {error}, expected a timeout that names the lost PE").into());
            }
        }
    }
    let limit = 2 * WAIT + Duration::from_secs(20);
    if start.elapsed() > limit {
        return Err(format!("the error was returned after {:?}, expected at most {limit:?}", start.elapsed()).into());
    }
    if let Some(place) = made.filter(|place| place.exists()) {
        std::fs::remove_dir_all(place)?;
    }
    Ok(())
}
