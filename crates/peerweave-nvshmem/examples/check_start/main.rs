//! Checks that NVSHMEM starts without a rendezvous: `mpirun -n 4 check_start --way
//! pmix|pmi|pmi2|mpi|id [--file PATH]`.
//!
//! `--way` selects how the PEs are connected:
//!
//! - `pmix`, `pmi`, `pmi2`: by the launcher's service (PMIx of Open MPI and Slurm, PMI and PMI-2 of
//!   Hydra and Slurm).
//! - `mpi`: by MPI's world communicator. Open MPI is loaded from `libmpi.so.40` or
//!   `PEERWEAVE_MPI_PATH`.
//! - `id`: by an id in a file, on one machine or a shared file system. `--file` sets the path of
//!   the file. The job's name is appended to the path.
//!
//! After the start, the program only checks that memory, a put, a barrier and a reduction work on
//! all PEs. `check nvshmem` of `peerweave-check` tests the other operations.
//!
//! Each PE uses the GPU with the PE's index on its machine. A PE prints `OK way PE 1 of 4` and
//! exits with 0, or prints `FAILED way PE 1 of 4: ...` and exits with 1. A run ends within 40
//! seconds.

mod mpi;
mod place;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use peerweave_driver::CudaContext;
use peerweave_nvshmem::{Context, Nvshmem, Settings, UniqueId};
use peerweave_types::{Pe, ReduceOp};

use crate::mpi::Mpi;
use crate::place::Place;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Time limit of each wait.
const WAIT: Duration = Duration::from_secs(20);
/// Time after which the process ends even if a call has not returned.
const WHOLE_RUN: Duration = Duration::from_secs(40);
/// Number of elements of the test data. The number is odd, and larger than any block in which data
/// is copied.
const COUNT: usize = 100_003;

/// Kind of bootstrap by which the PEs are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Way {
    /// PMIx of Open MPI or Slurm
    Pmix,
    /// PMI of Hydra or Slurm
    Pmi,
    /// PMI-2 of Hydra or Slurm
    Pmi2,
    /// MPI's world communicator; Open MPI is loaded from libmpi.so.40 or PEERWEAVE_MPI_PATH
    Mpi,
    /// An id in a file, for one machine or a shared file system
    Id,
}

impl Way {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns the name of the plug-in that NVSHMEM needs in its directory for this kind of
    /// bootstrap.
    fn plugin(self) -> &'static str {
        match self {
            Self::Pmix => "nvshmem_bootstrap_pmix.so.3",
            Self::Pmi => "nvshmem_bootstrap_pmi.so.3",
            Self::Pmi2 => "nvshmem_bootstrap_pmi2.so.3",
            Self::Mpi => "nvshmem_bootstrap_mpi.so.3",
            Self::Id => "nvshmem_bootstrap_uid.so.3",
        }
    }

    fn settings(self) -> Settings {
        let settings = Settings::default().deadline(WAIT).disable_nvls(true);
        let settings = match self {
            Self::Pmix => settings.bootstrap("PMI").bootstrap_pmi("PMIX"),
            Self::Pmi => settings.bootstrap("PMI").bootstrap_pmi("PMI"),
            Self::Pmi2 => settings.bootstrap("PMI").bootstrap_pmi("PMI-2"),
            Self::Mpi | Self::Id => settings,
        };
        match std::env::var("NVSHMEM_REMOTE_TRANSPORT") {
            Ok(_) => settings,
            Err(_) => settings.remote_transport("none"),
        }
    }
}

/// Checks that NVSHMEM starts without a rendezvous: `mpirun -n 4 check_start --way pmix`.
///
/// Each PE prints `OK ...` and exits with 0, or prints `FAILED ...` and exits with 1. Multicast is
/// disabled.
#[derive(Parser)]
#[command(max_term_width = 110)]
struct Asked {
    /// Kind of bootstrap by which the PEs are connected
    #[arg(long)]
    way: Way,
    /// File for the id of `--way id`; the job's name is appended to the path
    #[arg(long, value_name = "PATH", default_value_os_t = std::env::temp_dir().join("check-start"))]
    file: PathBuf,
}

fn main() -> ExitCode {
    let began = Instant::now();
    let asked = Asked::parse();
    let place = match Place::from_env() {
        Ok(place) => place,
        Err(error) => {
            println!("FAILED {error}");
            return ExitCode::FAILURE;
        }
    };
    let who = format!("{} PE {} of {}", asked.way.name(), place.pe, place.n_pes);
    let watched = who.clone();
    std::thread::spawn(move || {
        std::thread::sleep(WHOLE_RUN);
        println!("FAILED {watched}: timed out after {WHOLE_RUN:?}");
        // SAFETY: the call only ends the process.
        unsafe { libc::_exit(1) }
    });
    match run(&asked, &place) {
        Ok(()) => {
            println!("OK {who} in {:.1?}", began.elapsed());
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("FAILED {who}: {error}");
            // The clean-up of the GPU, MPI and NVSHMEM may wait for PEs that failed in another
            // call, and is skipped. The launcher ends those PEs.
            // SAFETY: the call only ends the process.
            unsafe { libc::_exit(1) }
        }
    }
}

fn run(asked: &Asked, place: &Place) -> Result<(), Failure> {
    let way = asked.way;
    // MPI requires to be initialised first. Its errors are also reported before a GPU is used.
    let mpi = if way == Way::Mpi { Some(Mpi::start(place)?) } else { None };
    let absent = plugin_that_is_not_beside(way)?;
    let device = peerweave_driver::context(place.local as usize)?;
    let context = match &mpi {
        // SAFETY: the pointer is to the world communicator of the MPI library that NVSHMEM's
        // plug-in also loads. MPI was initialised with MPI_THREAD_SERIALIZED. The main thread does
        // not call MPI while NVSHMEM runs, and finalises MPI only after NVSHMEM.
        Some(mpi) => unsafe { Context::from_mpi(mpi.world(), &device, way.settings()) }.map_err(Failure::from),
        None if way == Way::Id => by_id(&asked.file, place, &device),
        None => Context::from_launcher(&device, way.settings()).map_err(Failure::from),
    };
    let context = context.map_err(|error| match absent {
        Some(path) => format!("{error}; {} does not exist", path.display()).into(),
        None => error,
    })?;
    if (context.pe().get(), context.n_pes()) != (place.pe, place.n_pes) {
        return Err(format!(
            "NVSHMEM reports {} of {}, expected PE {} of {}",
            context.pe(),
            context.n_pes(),
            place.pe,
            place.n_pes
        )
        .into());
    }
    if place.pe == 0 {
        println!("{:?}, connected by {}", context.library(), context.info().bootstrap);
    }
    everybody_is_reached(&context)?;
    let report = context.finalize()?;
    if !report.leaked.is_empty() || report.other_handles != 0 {
        return Err(format!("finalize reported {report:?}, expected no leaked allocations and no other handles").into());
    }
    match mpi {
        Some(mpi) => mpi.end(),
        None => Ok(()),
    }
}

/// If NVSHMEM's plug-in for this kind of bootstrap is missing in NVSHMEM's directory, returns the
/// path of the missing file. Otherwise returns `None`. Without the file, the start may still
/// succeed: NVSHMEM may find the plug-in elsewhere, and some libraries need no plug-in.
fn plugin_that_is_not_beside(way: Way) -> Result<Option<PathBuf>, Failure> {
    let path = Nvshmem::load()?.path().parent().map(|directory| directory.join(way.plugin()));
    Ok(path.filter(|path| !path.is_file()))
}

/// Starts NVSHMEM with a unique id. PE 0 creates the id and writes it to a file of the job, and the
/// other PEs read the file.
fn by_id(file: &Path, place: &Place, device: &Arc<CudaContext>) -> Result<Context, Failure> {
    let path = PathBuf::from(format!("{}-{}", file.display(), place.job));
    let _written = if place.pe == 0 {
        let id = Context::unique_id(&Way::Id.settings())?;
        // The file is complete when it appears, because a rename is atomic.
        let draft = path.with_extension("draft");
        std::fs::write(&draft, id.to_bytes()).map_err(|error| format!("{}: {error}", draft.display()))?;
        std::fs::rename(&draft, &path)?;
        Some(Written(&path))
    } else {
        None
    };
    let start = Instant::now();
    let bytes = loop {
        match std::fs::read(&path) {
            Ok(bytes) => break bytes,
            Err(error) if start.elapsed() > WAIT => {
                return Err(format!("cannot receive the id from {}: {error}", path.display()).into());
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let id = UniqueId::try_from(bytes.as_slice())?;
    // When this call returns, all PEs have read the file, and it can be removed.
    Ok(Context::from_unique_id(id, Pe::new(place.pe), place.n_pes, device, Way::Id.settings())?)
}

/// A file that is removed when this value is dropped.
struct Written<'path>(&'path Path);

impl Drop for Written<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

/// Checks memory, a put to the next PE, a barrier and a sum over all PEs. Compares every element.
fn everybody_is_reached(context: &Context) -> Result<(), Failure> {
    let (pe, n_pes) = (context.pe().get(), context.n_pes());
    let (next, previous) = ((pe + 1) % n_pes, (pe + n_pes - 1) % n_pes);
    let (stream, world) = (context.stream(), context.world());
    let sample = |pe: u32, index: usize| u64::from(pe + 1) * 1_000_003 + index as u64;
    let source = context.alloc::<u64>(COUNT)?;
    let target = context.alloc_zeroed::<u64>(COUNT)?;
    source.copy_from(stream, &(0..COUNT).map(|index| sample(pe, index)).collect::<Vec<_>>())?;
    world.barrier(stream)?;
    context.put(&target, &source, Pe::new(next), stream)?;
    world.barrier(stream)?;
    same("a put", &target.to_vec(stream)?, |index| sample(previous, index))?;
    world.barrier(stream)?;
    world.reduce(&target, &source, ReduceOp::Sum, stream)?;
    same("a sum", &target.to_vec(stream)?, |index| (0..n_pes).map(|pe| sample(pe, index)).sum())?;
    world.barrier_blocking()?;
    context.free(source)?;
    context.free(target)?;
    Ok(())
}

fn same(what: &str, found: &[u64], expected: impl Fn(usize) -> u64) -> Result<(), Failure> {
    if found.len() != COUNT {
        return Err(format!("{what}: found {} elements, expected {COUNT}", found.len()).into());
    }
    match found.iter().enumerate().find(|(index, value)| **value != expected(*index)) {
        Some((index, value)) => Err(format!("{what}: element {index} is {value}, expected {}", expected(index)).into()),
        None => Ok(()),
    }
}
