//! Checks NCCL: every collective, type and reduction, in and out of place, against the host.
//!
//! ```text
//! check nccl [--non-blocking]
//! check nccl --lifecycle
//! check nccl --newer [PART,...] [--processes N]
//! check nccl --processes N [--kill K [--early]]
//! check nccl --rank R --ranks N --id-file PATH [--kill K]
//! ```
//! The first two forms drive all GPUs from one process. `--lifecycle` checks blocked calls that
//! reach their deadline or are aborted, and the creation of a communicator that one rank never
//! joins. `--newer` checks functions that NCCL 2.27 or a later version introduced, with a thread
//! for each GPU. With `--newer PART,...`, only the named parts run. With `--processes`, each rank
//! is a process instead of a thread, and the processes connect through a rendezvous. With `--kill
//! K`, rank K kills itself after the first all-reduce or, with `--early`, before the first
//! all-reduce. The command then checks that the other ranks get an error and continue. The last
//! form runs one rank: start it once for each rank R from 0 to N - 1.
//!
//! Communicators are blocking (NCCL's default), or non-blocking with `--non-blocking`. Every wait
//! has a deadline, usually 20 s. The whole run has a deadline of 300 s, or of 200 s with `--newer`.

mod lifecycle;
#[path = "../../../../crates/peerweave-nccl/tests/matrix/mod.rs"]
mod matrix;
mod newer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _};
use matrix::{Check, DEADLINE, Member};
use peerweave_bootstrap::{Job, Options, Rendezvous};
use peerweave_driver::{CudaContext, DeviceMemory, Driver};
use peerweave_nccl::{
    Communicator, CommunicatorBuilder, Config, DeadState, Nccl, NcclError, OnExpiry, Rank, ReduceOp, ShrinkMode, Switch, UniqueId,
};

use crate::table::Table;
use crate::{Failure, launch};

/// The options of `check nccl`. Without --processes or --rank, one process drives all GPUs.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Number of elements of each rank. For each element type, every collective runs with this
    /// number, and also with 1 element. If one process drives all GPUs, the check also makes calls
    /// with 17 elements of each type, and calls with 262144 elements of type f32
    #[arg(long, default_value_t = 1003, value_parser = at_least_one)]
    count: usize,
    /// Start N processes, one for each rank, which connect through a rendezvous
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with = "rank")]
    processes: Option<usize>,
    /// Run as this rank of the communicator; rank 0 writes the communicator's id to --id-file, and
    /// the other ranks read the id
    #[arg(long, value_name = "R", requires_all = ["ranks", "id_file"])]
    rank: Option<usize>,
    /// Number of ranks of the communicator; start one process with --rank for each rank
    #[arg(long, value_name = "N", value_parser = at_least_one, requires = "rank")]
    ranks: Option<usize>,
    /// File for the communicator's id; the file must not exist yet, and all processes must be able
    /// to read it
    #[arg(long, value_name = "PATH", requires = "rank")]
    id_file: Option<PathBuf>,
    /// Rank that kills itself after the first all-reduce; the other ranks detect its death, shrink
    /// the communicator and continue. With --processes, the errors must name the killed rank
    #[arg(long, value_name = "RANK")]
    kill: Option<usize>,
    /// With --kill: kill the rank before the ranks have connected, so that the first call of the
    /// other ranks waits until the watchdog ends the call
    #[arg(long, requires = "kill")]
    early: bool,
    /// Use non-blocking communicators
    #[arg(long)]
    non_blocking: bool,
    /// Check two cases, with blocking and with non-blocking communicators: stuck calls that reach
    /// their deadline or are aborted, and the creation of a communicator that one rank never joins
    #[arg(long, value_name = "yes|no", num_args = 0..=1, default_missing_value = "yes", default_value = "no",
        value_parser = |word: &str| yes_or_no(word), conflicts_with_all = ["processes", "rank", "kill"])]
    lifecycle: bool,
    /// Run the checks of functions that are new in NCCL 2.27 or later; a list PART,... selects some
    /// of these checks; requires NCCL_NVLS_ENABLE=0
    #[arg(long, value_name = "PART,...", num_args = 0..=1, default_missing_value = "all", value_parser = newer::parts,
        conflicts_with_all = ["rank", "kill", "lifecycle"])]
    newer: Option<String>,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "expected an integer of at least 1".to_owned())
}

fn yes_or_no(word: &str) -> Result<bool, String> {
    match word {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("expected the word yes or the word no".to_owned()),
    }
}

/// Exits the process with an error message if --rank or --kill does not name one of the ranks.
fn check_ranks(arguments: &Arguments) {
    let ranks = arguments.processes.or(arguments.ranks);
    for (option, rank) in [("--rank", arguments.rank), ("--kill", arguments.kill)] {
        let wrong = match (rank, ranks) {
            (Some(rank), Some(ranks)) if rank >= ranks => {
                format!("{option} is {rank}, expected less than {ranks} (the number of ranks)")
            }
            (Some(rank), None) => format!("{option} {rank} requires --processes or --rank"),
            _ => continue,
        };
        crate::Arguments::command().error(ErrorKind::ValueValidation, wrong).exit();
    }
}

impl Arguments {
    /// Returns a builder of communicators. The builder has the settings that the options select.
    fn builder(&self, nccl: Nccl) -> CommunicatorBuilder {
        // Blocking communicators are the default, and most programs use them.
        let config = if self.non_blocking { Config::new().blocking(Switch::Off) } else { Config::new() };
        Communicator::builder().nccl(nccl).config(config).deadline(DEADLINE)
    }
}

/// Runs `check nccl`. Returns the text that this process prints as its last line.
pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    check_ranks(arguments);
    launch::end_after(WHOLE_RUN);
    let checks = match (&arguments.id_file, arguments.rank, arguments.ranks, arguments.processes) {
        _ if launch::is_pe() => child(arguments),
        (Some(id_file), Some(rank), Some(ranks), _) => one_of_many(arguments, id_file, rank, ranks),
        (.., Some(processes)) => start(arguments, processes),
        _ => one_process(arguments),
    }?;
    Ok(format!("OK {checks} checks"))
}

fn one_process(arguments: &Arguments) -> Result<usize, String> {
    let text = |error: NcclError| error.to_string();
    let nccl = Nccl::load().map_err(text)?;
    println!("{nccl:?}");
    let driver = Driver::get().map_err(|error| error.to_string())?;
    let count = driver.device_count().map_err(|error| error.to_string())?;
    let contexts = (0..count).map(peerweave_driver::context).collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    if arguments.lifecycle {
        return lifecycle::all(nccl, &contexts);
    }
    if let Some(which) = &arguments.newer {
        return newer::in_threads(nccl, &contexts, which);
    }
    let start = Instant::now();
    let communicators = arguments.builder(nccl).init_all(&contexts).map_err(text)?;
    println!("init_all of {count} ranks took {:?}", start.elapsed());
    let members = members(communicators, &contexts)?;
    let mut check = Check::new(nccl, &members, count == 1);
    for elements in [1, 17, arguments.count] {
        check.all(elements).map_err(text)?;
    }
    check.of_type::<f32>(1 << 18).map_err(text)?;
    let checks = summary(&check)?;
    split_and_shrink(&members).map_err(text)?;
    let communicators = members.into_iter().map(|member| member.comm).collect();
    Communicator::finalize_all(communicators, DEADLINE).map_err(text)?;
    Ok(checks)
}

fn members(communicators: Vec<Communicator>, contexts: &[Arc<CudaContext>]) -> Result<Vec<Member>, String> {
    let member = |(comm, context): (Communicator, &Arc<CudaContext>)| {
        let stream = context.new_stream().map_err(|error| error.to_string())?;
        Ok(Member { comm, stream })
    };
    communicators.into_iter().zip(contexts).map(member).collect()
}

fn summary(check: &Check<'_>) -> Result<usize, String> {
    let mut table = Table::new(&["call", "passed", "failed"]);
    for (what, (passed, failed)) in &check.table {
        table.row([what.to_string(), passed.to_string(), failed.to_string()]);
    }
    table.print();
    for failure in &check.failures {
        println!("  {failure}");
    }
    match check.totals() {
        (passed, 0) => Ok(passed),
        (passed, failed) => Err(format!("failed checks: {failed} of {}", passed + failed)),
    }
}

/// Splits the communicator into even and odd ranks. Then shrinks the original communicator to all
/// ranks but the last. Checks an all-reduce in each new communicator.
fn split_and_shrink(members: &[Member]) -> Result<(), NcclError> {
    let n = members.len();
    let colors: Vec<_> = members.iter().map(|member| (&member.comm, Some((member.comm.rank().index() % 2) as u32), 0)).collect();
    let halves = Communicator::split_all(&colors, None)?;
    let streams: Vec<_> = members.iter().map(|member| Arc::clone(&member.stream)).collect();
    let halves: Vec<_> = halves.into_iter().flatten().zip(streams).map(|(comm, stream)| Member { comm, stream }).collect();
    sum_of_ranks(&halves)?;
    println!("number of communicators after the split: {}", if n > 1 { 2 } else { 1 });
    Communicator::finalize_all(halves.into_iter().map(|member| member.comm).collect(), DEADLINE)?;
    let nccl = members[0].comm.nccl();
    if n > 1 && nccl.has("ncclCommShrink") {
        let staying: Vec<_> = members[..n - 1].iter().map(|member| &member.comm).collect();
        let fewer = Communicator::shrink_all(&staying, &[Rank::new((n - 1) as u32)], ShrinkMode::Default, None)?;
        let fewer: Vec<_> =
            fewer.into_iter().zip(members).map(|(comm, member)| Member { comm, stream: Arc::clone(&member.stream) }).collect();
        sum_of_ranks(&fewer)?;
        println!("shrunk the communicator to {} ranks", n - 1);
        Communicator::finalize_all(fewer.into_iter().map(|member| member.comm).collect(), DEADLINE)?;
    }
    Ok(())
}

/// Computes the sum of rank + 1 over all ranks by an all-reduce on `members`. Panics if the result
/// is wrong.
fn sum_of_ranks(members: &[Member]) -> Result<(), NcclError> {
    let Some(first) = members.first() else { return Ok(()) };
    let mut buffers = Vec::new();
    for member in members {
        buffers.push(DeviceMemory::from_slice(&member.stream, &[member.comm.rank().get() as u64 + 1; 5])?);
    }
    first.comm.nccl().group(|group| {
        for (member, buffer) in members.iter().zip(&mut buffers) {
            group.all_reduce_in_place(&member.comm, &member.stream, buffer, ReduceOp::Sum)?;
        }
        Ok(())
    })?;
    for (member, buffer) in members.iter().zip(&buffers) {
        member.comm.wait(&member.stream, DEADLINE)?;
        let n = member.comm.n_ranks() as u64;
        assert_eq!(buffer.to_vec(&member.stream)?, [n * (n + 1) / 2; 5], "{:?}", member.comm);
    }
    Ok(())
}

/// Deadline of the whole run.
const WHOLE_RUN: Duration = Duration::from_secs(300);

/// Starts one process for each rank, and prints which processes succeeded. Returns the number of
/// processes that succeeded.
fn start(arguments: &Arguments, processes: usize) -> Result<usize, String> {
    let n = u32::try_from(processes).map_err(|error| error.to_string())?;
    let ended = launch::processes(n, WHOLE_RUN, |_| false).map_err(|error| error.to_string())?;
    let (mut table, mut failed) = (Table::new(&["rank", "result"]), 0);
    for (rank, ended) in ended.iter().enumerate() {
        let word = match ended.status.success() {
            _ if arguments.kill == Some(rank) => "killed",
            true => "right",
            false => "WRONG",
        };
        failed += usize::from(word == "WRONG");
        table.row([rank.to_string(), word.to_owned()]);
    }
    table.print();
    let expected = ended.len() - usize::from(arguments.kill.is_some());
    if failed == 0 { Ok(expected) } else { Err(format!("failed processes: {failed} of {expected}")) }
}

/// Runs one rank, in a process that [`start`] has started. Returns the number of checks made.
fn child(arguments: &Arguments) -> Result<usize, String> {
    let text = |error: NcclError| error.to_string();
    let job = Job::from_env().map_err(|error| error.to_string())?;
    let options = Options { deadline: DEADLINE, ..Options::default() };
    let rendezvous = Arc::new(Rendezvous::join(&job, options).map_err(|error| error.to_string())?);
    let nccl = Nccl::load().map_err(text)?;
    let context = peerweave_driver::context(rendezvous.pe().index()).map_err(|error| error.to_string())?;
    if let Some(which) = &arguments.newer {
        let checks = newer::in_process(nccl, &context, &rendezvous, which)?;
        let rendezvous =
            Arc::into_inner(rendezvous).ok_or("the rendezvous still has other owners after the checks, expected none")?;
        rendezvous.leave().map_err(|error| error.to_string())?;
        return Ok(checks);
    }
    let began = Instant::now();
    let comm = arguments.builder(nccl).from_rendezvous(&context, &rendezvous).map_err(text)?;
    println!("{}: {nccl:?}, from_rendezvous took {:?}", comm.rank(), began.elapsed());
    let stream = context.new_stream().map_err(|error| error.to_string())?;
    let members = [Member { comm, stream }];
    if let Some(killed) = arguments.kill {
        // This rank does not leave the rendezvous, because ranks that still wait would treat this
        // rank as lost too.
        return after_a_death(&members[0], killed, arguments.early, true).map_err(text);
    }
    let checks = everything(nccl, members, arguments.count)?;
    let rendezvous = Arc::into_inner(rendezvous).ok_or("the finalized communicator still owns the rendezvous")?;
    rendezvous.leave().map_err(|error| error.to_string())?;
    Ok(checks)
}

fn one_of_many(arguments: &Arguments, id_file: &Path, rank: usize, ranks: usize) -> Result<usize, String> {
    let text = |error: NcclError| error.to_string();
    let nccl = Nccl::load().map_err(text)?;
    let context = peerweave_driver::context(rank).map_err(|error| error.to_string())?;
    let id = id(nccl, rank, id_file)?;
    let start = Instant::now();
    let comm = arguments.builder(nccl).init_rank(&context, ranks, &id, Rank::new(rank as u32)).map_err(text)?;
    println!("rank {rank}: {nccl:?}, init_rank took {:?}", start.elapsed());
    let stream = context.new_stream().map_err(|error| error.to_string())?;
    let members = [Member { comm, stream }];
    if let Some(killed) = arguments.kill {
        return after_a_death(&members[0], killed, arguments.early, false).map_err(text);
    }
    everything(nccl, members, arguments.count)
}

/// Runs all checks of a rank that has its own process, and finalizes the communicator.
fn everything(nccl: Nccl, members: [Member; 1], count: usize) -> Result<usize, String> {
    let text = |error: NcclError| error.to_string();
    let mut check = Check::new(nccl, &members, true);
    for elements in [1, count] {
        check.all(elements).map_err(text)?;
    }
    let checks = summary(&check)?;
    let [member] = members;
    member.comm.finalize(DEADLINE).map_err(text)?;
    Ok(checks)
}

/// Returns the id of the communicator. Rank 0 creates the id and writes the id to `file`; the other
/// ranks wait for the file and read the id.
fn id(nccl: Nccl, rank: usize, file: &Path) -> Result<UniqueId, String> {
    if rank == 0 {
        let id = nccl.unique_id().map_err(|error| error.to_string())?;
        let unfinished = file.with_extension("unfinished");
        std::fs::write(&unfinished, id.to_hex())
            .and_then(|()| std::fs::rename(&unfinished, file))
            .map_err(|error| error.to_string())?;
        return Ok(id);
    }
    let deadline = Instant::now() + DEADLINE;
    loop {
        match std::fs::read_to_string(file) {
            Ok(text) => return text.trim().parse().map_err(|error: NcclError| error.to_string()),
            Err(error) if Instant::now() > deadline => {
                return Err(format!("cannot read the id from {}: {error}", file.display()));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Checks that the other ranks detect the death of rank `killed`: their next all-reduce returns an
/// error. Then the other ranks shrink the communicator and continue without the dead rank.
///
/// If `early` is true, the rank dies before the first collective. The other ranks are then not
/// connected, because NCCL connects the ranks in the first collective. If `named` is true, the
/// error must name the rank that died.
fn after_a_death(member: &Member, killed: usize, early: bool, named: bool) -> Result<usize, NcclError> {
    let (comm, stream) = (&member.comm, &member.stream);
    if !early {
        sum_of_ranks(std::slice::from_ref(member))?;
    }
    if comm.rank() == Rank::new(killed as u32) {
        println!("rank {killed} aborts its process");
        std::process::abort();
    }
    let mut buffer = DeviceMemory::from_slice(stream, &vec![1.0f32; 1 << 20])?;
    let began = Instant::now();
    comm.set_deadline(Duration::from_secs(5));
    let stuck = comm
        .all_reduce_in_place(stream, &mut buffer, ReduceOp::Sum)
        .and_then(|()| comm.wait_with(stream, Duration::from_secs(5), OnExpiry::LeaveAlone));
    match stuck {
        // The all-reduce needs the values of rank `killed`, which that rank never sent.
        Ok(()) => panic!("{}: the all-reduce completed although rank {killed} died before it made the call", comm.rank()),
        Err(error) => {
            println!("{}: the all-reduce failed after {:?}: {error}", comm.rank(), began.elapsed());
            assert!(
                began.elapsed() < Duration::from_secs(8),
                "{}: the error was returned after {:?}, expected less than 8s",
                comm.rank(),
                began.elapsed()
            );
            let is_named = matches!(&error, NcclError::PeerLost(lost) if lost.ranks == [Rank::new(killed as u32)]);
            assert!(is_named || !named, "{}: the error does not name rank {killed}: {error}", comm.rank());
        }
    }
    if matches!(comm.async_error(), Err(NcclError::Dead { state: DeadState::Aborted, .. })) {
        println!("{}: the communicator was aborted and cannot be shrunk", comm.rank());
        return Ok(1);
    }
    comm.set_deadline(DEADLINE);
    let fewer = comm.shrink(&[Rank::new(killed as u32)], ShrinkMode::Abort)?;
    println!(
        "{} of the old communicator is {} of the new communicator, which has {} ranks",
        comm.rank(),
        fewer.rank(),
        fewer.n_ranks()
    );
    // The stuck all-reduce may still block the stream of the failed communicator.
    let stream = comm.context().new_stream().map_err(peerweave_driver::CudaError::of("cuStreamCreate"))?;
    sum_of_ranks(&[Member { comm: fewer.clone(), stream }])?;
    comm.abort(DEADLINE)?;
    fewer.finalize(DEADLINE)?;
    Ok(1)
}
