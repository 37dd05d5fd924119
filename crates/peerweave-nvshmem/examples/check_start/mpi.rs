//! The functions of Open MPI that are needed to get a communicator, loaded at run time. The program
//! sends no MPI messages.
//!
//! Invariant: MPI is initialised and finalised once, by the same thread.

use std::ffi::{c_char, c_int, c_void};

use peerweave_dylib::{Search, Visibility};

use crate::Failure;
use crate::place::Place;

// SAFETY: a file with this name is Open MPI.
const SEARCH: Search = unsafe { Search::new("Open MPI", "PEERWEAVE_MPI_PATH", &["libmpi.so.40"]) }.in_directories(&[
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64/openmpi/lib",
    "/usr/local/lib",
    "/usr/local/mpi/lib",
    "/opt/openmpi/lib",
]);

/// The thread level at which any thread may call MPI, one at a time. This level is needed because
/// NVSHMEM is called on a separate thread.
const MPI_THREAD_SERIALIZED: c_int = 2;

peerweave_dylib::bindings! {
    /// The functions of Open MPI, whose communicators are pointers.
    struct Api {
        /// Initialises MPI.
        "1.0" fn MPI_Init_thread(argc: *mut c_int, argv: *mut *mut *mut c_char, required: c_int, provided: *mut c_int) -> c_int;
        /// Returns the rank of this process.
        "1.0" fn MPI_Comm_rank(communicator: *mut c_void, rank: *mut c_int) -> c_int;
        /// Returns the number of processes.
        "1.0" fn MPI_Comm_size(communicator: *mut c_void, size: *mut c_int) -> c_int;
        /// Finalises MPI.
        "1.0" fn MPI_Finalize() -> c_int;
    }
}

/// MPI after its initialisation. [`Mpi::end`] finalises MPI.
pub(crate) struct Mpi {
    api: Api,
    /// The world communicator. This value lives until the process ends, because NVSHMEM may access
    /// it at any time.
    world: &'static *mut c_void,
}

impl Mpi {
    pub(crate) fn start(place: &Place) -> Result<Self, Failure> {
        // The symbols are global, because the plug-ins of MPI and of NVSHMEM need them.
        let library = SEARCH.open(Visibility::Global)?;
        let path = library.path().display().to_string();
        let world = library.symbol(c"ompi_mpi_comm_world");
        let world = world.ok_or_else(|| format!("{path} has no ompi_mpi_comm_world, expected Open MPI"))?;
        let api = Api::new(library);
        let mut provided = -1;
        // SAFETY: MPI permits null pointers for the arguments, and the last pointer is to a live
        // integer.
        let code =
            unsafe { api.MPI_Init_thread(std::ptr::null_mut(), std::ptr::null_mut(), MPI_THREAD_SERIALIZED, &raw mut provided) }?;
        check("MPI_Init_thread", code)?;
        if provided < MPI_THREAD_SERIALIZED {
            return Err(format!(
                "MPI_Init_thread of {path} provides level {provided}, expected at least {MPI_THREAD_SERIALIZED}"
            )
            .into());
        }
        let world = world.as_ptr();
        let (mut rank, mut size) = (-1, -1);
        // SAFETY: the symbol is the world communicator itself, MPI is initialised, and the pointer
        // is to a live integer.
        check("MPI_Comm_rank", unsafe { api.MPI_Comm_rank(world, &raw mut rank) }?)?;
        // SAFETY: as for `MPI_Comm_rank`.
        check("MPI_Comm_size", unsafe { api.MPI_Comm_size(world, &raw mut size) }?)?;
        if (i64::from(rank), i64::from(size)) != (place.pe.into(), place.n_pes.into()) {
            return Err(format!(
                "MPI reports rank {rank} of {size}, expected rank {} of {}; {path} may be another MPI than the launcher's",
                place.pe, place.n_pes
            )
            .into());
        }
        Ok(Self { api, world: Box::leak(Box::new(world)) })
    }

    /// Returns the address of the world communicator, which is a pointer to an `MPI_Comm`.
    pub(crate) fn world(&self) -> *mut c_void {
        std::ptr::from_ref(self.world).cast_mut().cast()
    }

    pub(crate) fn end(self) -> Result<(), Failure> {
        // SAFETY: this thread initialised MPI, and no code uses MPI any more.
        check("MPI_Finalize", unsafe { self.api.MPI_Finalize() }?)
    }
}

fn check(call: &str, code: c_int) -> Result<(), Failure> {
    if code == 0 { Ok(()) } else { Err(format!("{call} returned {code}, expected 0").into()) }
}
