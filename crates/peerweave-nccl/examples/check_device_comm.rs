//! Checks device communicators on the GPUs of a machine: made on every rank in the layouts that the library can give, and given back.
//!
//! ```text
//! PEERWEAVE_MULTICAST=off NCCL_NVLS_ENABLE=0 check_device_comm
//! ```
//! Asks for no multicast object. No kernel runs: what is checked is that NCCL takes the requirements as this crate lays them out, and that what it
//! writes is of the version, rank and size that it should be. The last line is `OK` or `FAILED ...`.

use std::process::ExitCode;
use std::time::Duration;

use peerweave_driver::{Driver, context};
use peerweave_nccl::{
    Communicator, Config, DeviceCommLayout, DeviceCommRequirements, DeviceCommunicator, Nccl, NcclError, ResourceBuffer,
    UniqueId, Version,
};

const DEADLINE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    match check() {
        Ok(()) => {
            println!("OK");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("FAILED {error}");
            ExitCode::FAILURE
        }
    }
}

fn check() -> Result<(), String> {
    let text = |error: NcclError| error.to_string();
    let nccl = Nccl::load().map_err(text)?;
    println!("{nccl:?}, lacks {}", nccl.missing().len());
    let driver = Driver::get().map_err(|error| error.to_string())?;
    let ranks = driver.device_count().map_err(|error| error.to_string())?;
    let id = nccl.unique_id().map_err(text)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || one_rank(nccl, ranks, &id, rank))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a rank panicked".to_owned())?)
    })
}

fn one_rank(nccl: Nccl, ranks: usize, id: &UniqueId, rank: usize) -> Result<(), String> {
    let text = |error: NcclError| format!("rank {rank}: {error}");
    let context = context(rank).map_err(|error| error.to_string())?;
    let communicator = Communicator::init_rank(nccl, &context, ranks, id, rank, &Config::new(), DEADLINE).map_err(text)?;
    let properties = communicator.properties().map_err(text)?;
    let (lsa, rail) = (communicator.lsa_team().map_err(text)?, communicator.rail_team().map_err(text)?);
    println!("rank {rank}: {properties:?}\nrank {rank}: lsa {lsa:?} rail {rail:?}");
    let own = nccl.version();
    let layouts = [Version::new(2, 30, 3), Version::new(2, 30, 7), Version::new(2, 31, 2), Version::new(2, 32, 3)];
    let older = layouts.into_iter().filter(|version| *version <= own).map(DeviceCommLayout::Version);
    for layout in older.chain([DeviceCommLayout::Library]) {
        let requirements = DeviceCommRequirements::new()
            .layout(layout)
            .lsa_barriers(4)
            .buffer(ResourceBuffer { len_bytes: 5000, align_bytes: 512 })
            .buffer(ResourceBuffer { len_bytes: 64, align_bytes: 128 });
        let device = DeviceCommunicator::create(&communicator, &requirements).map_err(text)?;
        let word = |index: usize| u32::from_ne_bytes(std::array::from_fn(|byte| device.as_bytes()[4 * index + byte]));
        let head: [u32; 4] = std::array::from_fn(word);
        println!(
            "rank {rank}: {layout:?}: {device:?}, head {head:x?}, buffers at {:?} {:?}",
            device.buffer_offset_bytes(0),
            device.buffer_offset_bytes(1)
        );
        let version = match layout {
            DeviceCommLayout::Version(version) => version,
            _ => own,
        };
        if head != [0xcafe_beef, version.code().unsigned_abs(), rank as u32, ranks as u32] {
            return Err(format!("rank {rank}: {layout:?}: the head is {head:x?}"));
        }
        if device.buffer_offset_bytes(0).is_none_or(|offset| !offset.is_multiple_of(512)) {
            return Err(format!("rank {rank}: {layout:?}: a buffer is at {:?}", device.buffer_offset_bytes(0)));
        }
        // SAFETY: no kernel was started.
        unsafe { device.destroy() }.map_err(text)?;
    }
    communicator.finalize(DEADLINE).map_err(text)
}
