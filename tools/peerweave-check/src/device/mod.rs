//! Checks communication from inside kernels: `check device [--transport T] [--part P] [--kill PE]
//! [--threads]`.
//! The command starts one PE for each GPU, each in its own process. With `--threads`, the PEs are
//! threads of one process that share the first GPU. Their kernels run at the same time, so one GPU
//! is enough. Without options, the command checks launches, writes to the heap, puts with signals,
//! barriers, graphs and teams. By default, kernels access the memory of other PEs directly.
//! `--transport nvshmem` and `--transport network` use NVSHMEM's heap; with `network`, kernels
//! never access the memory of other PEs directly.
//!
//! `--part checks` tests every function that kernels call. Its kernels are compiled only if
//! `PEERWEAVE_PTX=require` was set for the build, because compiling these kernels takes minutes.
//! With `--kill PE`, the PE with this number kills itself while kernels of the other PEs wait for
//! that PE. Every wait has a deadline. The command prints a row for each check.

mod basics;
mod bench;
mod checks;
mod kill;
mod rows;

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use peerweave_bootstrap::{Job, Launcher, Options, Rendezvous, Server};
use peerweave_cuda::{Gpu, GpuOptions, Transport};
use peerweave_driver::Driver;

use crate::{Failure, launch};
use rows::Rows;

/// Time after which the parent process ends all PEs.
const WHOLE_RUN: Duration = Duration::from_secs(570);

/// The options of `check device`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Number of processes to start; default: one for each GPU
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pes: Option<u32>,
    /// How kernels access the memory of other PEs
    #[arg(long, value_enum, default_value_t = Kind::Mapped)]
    transport: Kind,
    /// Part of the checks to run
    #[arg(long, value_enum, default_value_t = Part::Basics)]
    part: Part,
    /// PE that kills itself while kernels of the other PEs wait for this PE
    #[arg(long, value_name = "PE")]
    kill: Option<u32>,
    /// Run only the checks whose names contain this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Run the PEs as threads of this process that share the first GPU
    #[arg(long, conflicts_with_all = ["kill", "transport"])]
    threads: bool,
    /// Time limit of a wait, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    deadline: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// The heap is virtual memory that every PE maps
    Mapped,
    /// The heap is NVSHMEM's heap; kernels access the memory of a PE directly if NVSHMEM maps this
    /// memory, and otherwise through NVSHMEM's device library
    Nvshmem,
    /// The heap is NVSHMEM's heap; kernels access all other PEs through NVSHMEM's device library
    Network,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Part {
    /// Checks of launches, writes to the heap, puts with signals, barriers, graphs and teams
    Basics,
    /// Checks of every function of Peerweave that kernels can call
    Checks,
    /// Both `basics` and `checks`
    All,
    /// Measurements from inside kernels: times and bandwidths of one-sided operations, and times of
    /// barriers
    Bench,
}

/// The result of a check: an error if the check failed.
type Outcome = Result<(), Failure>;

/// Runs `check device`. If a launcher started this process, this process is one PE. Otherwise this
/// process starts all PEs. Returns the text that this process prints as its last line.
pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    launch::end_after(WHOLE_RUN + Duration::from_secs(20));
    let job = Job::from_env()?;
    if job.launcher == Launcher::Single {
        return parent(arguments);
    }
    let (passed, failed) = pe(arguments, &job, job.local_pe as usize)?;
    if failed > 0 {
        Err(format!("{}: failed checks: {failed}", job.pe).into())
    } else {
        Ok(format!("{}: OK {passed} checks", job.pe))
    }
}

/// Starts the PEs and waits until all PEs have ended. Returns the text that this process prints as
/// its last line.
fn parent(arguments: &Arguments) -> Result<String, Failure> {
    let n_pes = match arguments.pes {
        Some(n_pes) => n_pes,
        None if arguments.threads => 2,
        None => u32::try_from(Driver::get()?.device_count()?)?,
    };
    if arguments.threads {
        return threads(arguments, n_pes);
    }
    if let Some(victim) = arguments.kill.filter(|victim| *victim >= n_pes) {
        return Err(format!("--kill is {victim}, expected less than {n_pes} (the number of PEs)").into());
    }
    let ended = launch::processes(n_pes, WHOLE_RUN, |_| false)?;
    let survives = |pe: usize| arguments.kill.is_none_or(|victim| victim as usize != pe);
    let failed = ended.iter().enumerate().filter(|(pe, ended)| ended.status.success() != survives(*pe));
    let failed: Vec<_> = failed.map(|(pe, ended)| format!("PE {pe}: {}", ended.status)).collect();
    if failed.is_empty() { Ok(format!("OK {n_pes} PEs")) } else { Err(failed.join(", ").into()) }
}

/// Runs all PEs as threads on the first GPU. Returns the text that this process prints as its last
/// line.
fn threads(arguments: &Arguments, n_pes: u32) -> Result<String, Failure> {
    let (_server, jobs) = Server::on_this_machine(n_pes)?;
    let outcomes: Vec<Result<(usize, usize), Failure>> = std::thread::scope(|scope| {
        let threads: Vec<_> = jobs.iter().map(|job| scope.spawn(move || pe(arguments, job, 0))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("the thread of this PE panicked".into()))).collect()
    });
    let failed: Vec<_> = (0..)
        .zip(outcomes)
        .filter_map(|(pe, outcome): (u32, _)| match outcome {
            Ok((_, 0)) => None,
            Ok((_, failed)) => Some(format!("PE {pe}: failed checks: {failed}")),
            Err(error) => Some(format!("PE {pe}: {error}")),
        })
        .collect();
    if failed.is_empty() { Ok(format!("OK {n_pes} PEs as threads")) } else { Err(failed.join(", ").into()) }
}

/// Runs one PE on a GPU. Returns the number of passed checks and the number of failed checks.
fn pe(arguments: &Arguments, job: &Job, device: usize) -> Result<(usize, usize), Failure> {
    let start = Instant::now();
    let rendezvous = Arc::new(Rendezvous::join(job, Options::default())?);
    let context = peerweave_driver::local_context(device)?;
    let settings = peerweave_nvshmem::Settings::default;
    let transport = match arguments.transport {
        Kind::Mapped => Transport::Mapped,
        Kind::Nvshmem => Transport::Nvshmem(settings()),
        Kind::Network => Transport::Network(settings()),
    };
    let deadline = Duration::from_secs(arguments.deadline);
    let heap_bytes = if arguments.part == Part::Bench { bench::HEAP_BYTES } else { 32 << 20 };
    let options = GpuOptions::new(heap_bytes).transport(transport).deadline(deadline);
    let gpu = Gpu::new(&rendezvous, &context, options)?;
    let mut table = Rows::new(&gpu, format!("{:?}", arguments.transport).to_lowercase(), start, &arguments.only);
    match arguments.kill {
        Some(victim) => kill::run(&gpu, &mut table, victim),
        None => {
            let wants = |part| arguments.part == part || arguments.part == Part::All;
            if wants(Part::Basics) {
                basics::run(&gpu, &mut table);
            }
            if wants(Part::Checks) {
                checks::run(&gpu, &mut table);
            }
            if arguments.part == Part::Bench {
                table.check("load all kernels of the measurements", || bench::load(&gpu));
                table.check("measurements", || bench::run(&gpu));
            }
        }
    }
    let (passed, failed) = table.print();
    if failed == 0 && arguments.kill.is_none() {
        gpu.end()?;
        Arc::into_inner(rendezvous).ok_or("the rendezvous still has other owners after Gpu::end, expected none")?.leave()?;
    }
    Ok((passed, failed))
}
