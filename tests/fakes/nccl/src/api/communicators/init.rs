//! Creates communicators from unique ids.
//!
//! Module `derive` creates communicators from other communicators. Invariant: no communicator is
//! created with a device or rank that does not exist.

use core::ffi::c_int;

use super::config;
use super::start::{init_faults, start};
use crate::abi::{Code, ConfigStruct, Out, Result, UniqueId, driver, fail, invalid, misuse, not_null};
use crate::call::exports;
use crate::comm::{Comm, CommPtr, Config};
use crate::messages::{Members, bootstrap, numbers, wire};
use crate::report::debug;

fn init_rank(newcomm: *mut CommPtr, ranks: c_int, ids: Vec<UniqueId>, rank: c_int, config: Config) -> Result {
    not_null(newcomm, "newcomm")?;
    let device = driver::chosen_device()?;
    if ranks < 1 || rank < 0 || rank >= ranks {
        return invalid(format!("Invalid rank requested : {rank}/{ranks}"));
    }
    ids.iter().try_for_each(bootstrap::check_id)?;
    driver::as_allocations_do()?;
    let comm = Comm::new(device, config);
    debug::say(
        debug::Level::Info,
        &format!("comm {:#x} rank {rank} nranks {ranks} cudaDev {} - Init START", comm.handle().address(), device.0),
    );
    start(newcomm, comm, None, rank, move |comm| bootstrap::join(&ids, ranks, rank, comm.device, &|| comm.stopped()))
}

exports! {
    /// Creates a unique id. This process is the server by which the ranks find each other.
    fn ncclGetUniqueId(unique_id: *mut UniqueId) {
        not_null(unique_id, "uniqueId")?;
        Out(unique_id).set(bootstrap::make_id()?);
        Ok(())
    }

    /// Creates a rank's communicator.
    fn ncclCommInitRank(comm: *mut CommPtr, nranks: c_int, comm_id: UniqueId, rank: c_int) {
        init_rank(comm, nranks, vec![comm_id], rank, Config::DEFAULT)
    }

    /// Creates a rank's communicator with a configuration.
    fn ncclCommInitRankConfig(comm: *mut CommPtr, nranks: c_int, comm_id: UniqueId, rank: c_int, config: *const ConfigStruct) {
        init_rank(comm, nranks, vec![comm_id], rank, config::read(config, Config::DEFAULT)?)
    }

    /// Creates a rank's communicator with several ids, each for a share of the ranks.
    fn ncclCommInitRankScalable(newcomm: *mut CommPtr, nranks: c_int, myrank: c_int, n_id: c_int, comm_ids: *const UniqueId,
        config: *const ConfigStruct) {
        if n_id < 1 || n_id > nranks {
            return invalid(format!("improper usage of ncclCommInitRankScalable: nId = {n_id}, nranks = {nranks}"));
        }
        not_null(comm_ids, "commId")?;
        // SAFETY: the program promises this many ids there.
        let ids = unsafe { std::slice::from_raw_parts(comm_ids, n_id as usize) };
        init_rank(newcomm, nranks, ids.to_vec(), myrank, config::read(config, Config::DEFAULT)?)
    }

    /// Creates the communicators of all devices of this process.
    fn ncclCommInitAll(comms: *mut CommPtr, ndev: c_int, devlist: *const c_int) {
        not_null(comms, "comms")?;
        if ndev < 0 {
            return invalid(format!("Invalid device count requested : {ndev}"));
        }
        let available = driver::device_count()?;
        let mut devices = Vec::new();
        for index in 0..ndev {
            // SAFETY: the program promises `ndev` devices if it gives a list.
            let device = if devlist.is_null() { index } else { unsafe { devlist.add(index as usize).read() } };
            if device < 0 || device >= available {
                return fail(Code::UnhandledCudaError, format!("Cuda failure 101 'invalid device ordinal': {device}"));
            }
            if devices.contains(&device) {
                return misuse(format!("device {device} is listed twice"));
            }
            devices.push(device);
        }
        let id = numbers::wide();
        let addresses = vec![wire::own()?.clone(); devices.len()];
        for (rank, device) in devices.iter().enumerate() {
            let comm = Comm::new(driver::device_of_ordinal(*device)?, Config::DEFAULT);
            let members = Members { id, rank: rank as i32, addresses: addresses.clone(), devices: devices.clone() };
            init_faults(comm, members.rank)?;
            let _ = comm.members.set(members);
            // SAFETY: the program promises room for `ndev` handles.
            Out(unsafe { comms.add(rank) }).set(comm.handle());
        }
        Ok(())
    }
}
