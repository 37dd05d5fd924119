//! Measures the path between two devices: bandwidth by stores, by loads and by copy engine, and the
//! latency of a flag.
//!
//! This module prints nothing. The kernels are PTX text (`kernels.ptx`), which the driver compiles
//! when it loads the text.
//!
//! Invariant: every wait is limited, on the host by a time and in a kernel by a number of reads.
//! Transferred data is compared.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use peerweave_driver::cudarc::driver::CudaEvent;
use peerweave_driver::cudarc::driver::sys::CUevent_flags;
use peerweave_driver::{CudaContext, CudaError, DeviceBuffer, DriverError, PrivateStream};
use peerweave_vmm::{
    Exportable, Granularity, MappedMemory, Mapping, Misuse, PhysicalMemory, Reservation, Rights, VmmError, peer,
};

use super::kernels::{Kernels, Ping};

/// A method of transferring data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// A kernel on the first device reads the memory of the first device and writes the memory of
    /// the second.
    Stores,
    /// A kernel on the first device reads the memory of the second device and writes the memory of
    /// the first.
    Loads,
    /// A copy engine copies from the memory of the first device to the memory of the second.
    CopyEngine,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 3] = [Self::Stores, Self::Loads, Self::CopyEngine];

    /// Returns the name of the method.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stores => "stores",
            Self::Loads => "loads",
            Self::CopyEngine => "copy engine",
        }
    }
}

/// Measures transfers and latencies between several devices. Each device has memory that the other
/// devices can access.
pub struct Probe {
    stations: Vec<Station>,
    /// The pairs of devices without peer access, and the error of each pair. A pair is the index of
    /// the device that lacks access, then the index of the device that owns the memory.
    no_access: BTreeMap<(usize, usize), VmmError>,
    /// Length in bytes of the source buffer of each device, and of its target buffer.
    bytes: usize,
    no_kernels: Option<VmmError>,
}

struct Station {
    context: Arc<CudaContext>,
    stream: PrivateStream,
    source: Mapping,
    target: Mapping,
    /// Memory of the ping-pong on this device: one cache line for the flag, and one cache line to
    /// report a failure.
    flags: Mapping,
    kernels: Option<Kernels>,
}

/// The result of transfers between two devices: time, bytes and wrong words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moved {
    /// Time from the start of the first repetition to the end of the last repetition, measured by
    /// CUDA events.
    pub seconds: f64,
    /// Number of bytes moved within `seconds`.
    pub bytes: u64,
    /// Number of wrong 8-byte words. Only words at the start and at the end of the target are
    /// compared.
    pub wrong: usize,
}

impl Moved {
    /// Returns the bandwidth in GB/s (10^9 bytes per second).
    pub fn gigabytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e9
    }
}

/// Number of 8-byte words that are compared at the start of a target buffer after a transfer. The
/// same number of words is compared at its end.
const COMPARED_WORDS: usize = 1 << 17;
/// Offset in bytes of the error word from the ping-pong flag in a device's flag memory. The flag
/// and the word are in different cache lines.
const LINE_BYTES: u64 = 128;

impl Probe {
    /// Allocates two buffers on each device: a source and a target. Each buffer has `bytes` bytes,
    /// rounded up to the largest granularity of the devices. All devices with peer access can
    /// access the buffers.
    ///
    /// # Errors
    /// Errors of the driver; [`VmmError::Timeout`] if a device has not filled its memory by the
    /// deadline. Two problems are not errors of this function: [`access`](Self::access) reports
    /// missing peer access, and [`kernels`](Self::kernels) reports kernels that cannot be loaded.
    pub fn new(contexts: &[Arc<CudaContext>], bytes: usize, deadline: Instant) -> Result<Self, VmmError> {
        let step = contexts
            .iter()
            .map(|context| Ok(Granularity::of_device(context.ordinal(), Exportable::NOWHERE)?.recommended))
            .collect::<Result<Vec<_>, VmmError>>()?
            .into_iter()
            .max()
            .unwrap_or(1);
        let rounded = bytes.max(1).checked_next_multiple_of(step);
        let rounded = rounded.ok_or_else(|| {
            wrong_value(
                "Probe::new",
                "bytes",
                bytes,
                &format!("a size that fits in 64 bits when rounded up to a multiple of {step}, the allocation granularity"),
            )
        })?;
        let mut probe = Self { stations: Vec::new(), no_access: BTreeMap::new(), bytes: rounded, no_kernels: None };
        for (at, context) in contexts.iter().enumerate() {
            let kernels = Kernels::load(context).map_err(|error| probe.no_kernels = Some(error)).ok();
            let stream = PrivateStream::new(context)?;
            let mut map = |bytes| shared(contexts, at, bytes, &mut probe.no_access);
            let (source, target, flags) = (map(rounded)?, map(rounded)?, map(step)?);
            let station = Station { context: Arc::clone(context), stream, source, target, flags, kernels };
            station.fill(deadline)?;
            probe.stations.push(station);
        }
        Ok(probe)
    }

    /// Returns an error if the device with index `from` cannot access the memory of the device with
    /// index `to`.
    pub fn access(&self, from: usize, to: usize) -> Result<(), &VmmError> {
        self.no_access.get(&(from, to)).map_or(Ok(()), Err)
    }

    /// Returns the length of each source and target in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns an error if the kernels of the probe could not be loaded. In this case, stores,
    /// loads and latency cannot be measured.
    pub fn kernels(&self) -> Result<(), &VmmError> {
        self.no_kernels.as_ref().map_or(Ok(()), Err)
    }

    /// Transfers the whole memory `repeats` times along all paths at the same time, and compares
    /// the data. A path is a pair of indices of devices; the first device makes the transfer. No
    /// device may be the first device of two paths, or the second device of two paths.
    ///
    /// `shape` is the number of blocks of a kernel and the number of threads of a block.
    ///
    /// # Errors
    /// [`Misuse::Value`] for invalid paths; [`VmmError::Timeout`]; the errors
    /// of [`kernels`](Self::kernels) and [`access`](Self::access); errors of the driver.
    pub fn bandwidth(
        &self,
        method: Method,
        paths: &[(usize, usize)],
        repeats: u32,
        shape: (u32, u32),
        deadline: Instant,
    ) -> Result<Vec<Moved>, VmmError> {
        let call = "Probe::bandwidth";
        let twice = |pick: fn(&(usize, usize)) -> usize| {
            let mut seen = vec![false; self.stations.len()];
            paths.iter().any(|path| pick(path) >= seen.len() || std::mem::replace(&mut seen[pick(path)], true))
        };
        if repeats == 0 || paths.is_empty() || twice(|path| path.0) || twice(|path| path.1) {
            return Err(wrong_value(
                call,
                "paths",
                format!("{paths:?} with {repeats} repetitions"),
                "at least one path and one repetition; each device may be first in only one path, and second in only one path",
            ));
        }
        paths.iter().try_for_each(|(from, to)| self.access(*from, *to)).map_err(Clone::clone)?;
        for (from, to) in paths {
            let into = if method == Method::Loads { from } else { to };
            let station = &self.stations[*into];
            peerweave_vmm::zero(&station.stream, &mut station.target.memory::<u64>(station.context.ordinal())?)?;
            station.wait(call, deadline)?;
        }
        // This transfer is a warm-up, because the first use of a mapping or a kernel is slow.
        for path in paths {
            self.enqueue(method, *path, 1, shape)?;
        }
        for (from, _) in paths {
            self.stations[*from].wait(call, deadline)?;
        }
        let mut events = Vec::new();
        for path in paths {
            let station = &self.stations[path.0];
            let start = station.mark()?;
            self.enqueue(method, *path, repeats, shape)?;
            events.push((start, station.mark()?));
        }
        let mut moved = Vec::new();
        for (path, (start, end)) in paths.iter().zip(&events) {
            self.stations[path.0].wait(call, deadline)?;
            let seconds = seconds(start, end)?;
            moved.push(Moved { seconds, bytes: self.bytes as u64 * u64::from(repeats), wrong: 0 });
        }
        for (path, moved) in paths.iter().zip(&mut moved) {
            moved.wrong = self.wrong(method, *path, deadline)?;
        }
        Ok(moved)
    }

    /// Returns half the round-trip time between two devices, in seconds: the mean over `rounds`
    /// round trips. In a round trip, each device sets a flag in the memory of the other device.
    ///
    /// # Errors
    /// [`VmmError::BrokenPeer`] if a device does not see the flag that the other device has set.
    /// Also the errors of [`bandwidth`](Self::bandwidth).
    pub fn latency(&self, one: usize, other: usize, rounds: u32, deadline: Instant) -> Result<f64, VmmError> {
        /// Maximum number of reads of a flag. One read takes about half a microsecond, so the limit
        /// is a few seconds.
        const MOST_LOOKS: u32 = 8_000_000;
        let call = "Probe::latency";
        if one == other || one.max(other) >= self.stations.len() || rounds == 0 {
            return Err(wrong_value(
                call,
                "the pair of devices",
                format!("{one} and {other}, with {rounds} round trips"),
                "two different devices of the probe and at least one round trip",
            ));
        }
        let pair = [(one, other), (other, one)];
        pair.iter().try_for_each(|(from, to)| self.access(*from, *to)).map_err(Clone::clone)?;
        for (at, _) in pair {
            let station = &self.stations[at];
            peerweave_vmm::zero(&station.stream, &mut station.flags.memory::<u32>(station.context.ordinal())?)?;
            station.wait(call, deadline)?;
        }
        let mut events = Vec::new();
        // The first launch has zero rounds and loads the kernels: loading one kernel while another
        // waits could block both.
        for rounds in [0, rounds] {
            events.clear();
            for (at, peer) in pair {
                let station = &self.stations[at];
                let (ordinal, stream) = (station.context.ordinal(), &station.stream);
                let mine = station.flags.access(ordinal, stream)?.address();
                let theirs = self.stations[peer].flags.access(ordinal, stream)?.address();
                let ping = Ping { mine, theirs, failed: mine + LINE_BYTES, is_first: at == one, rounds, most_looks: MOST_LOOKS };
                let start = station.mark()?;
                // SAFETY: the device may access both flags, which stay mapped until the stream has
                // completed. Only this kernel and the peer's kernel use the flags.
                unsafe { self.kernels_of(at)?.ping(stream, &ping)? };
                events.push((start, station.mark()?));
            }
            for (at, _) in pair {
                self.stations[at].wait(call, deadline)?;
            }
        }
        for (at, peer) in pair {
            let station = &self.stations[at];
            let words = station.flags.memory::<u32>(station.context.ordinal())?.slice(0..64)?;
            let failed = peerweave_vmm::read(&station.stream, &words, deadline)?[LINE_BYTES as usize / 4];
            if failed != 0 {
                return Err(VmmError::BrokenPeer {
                    from: format!("device {}", self.stations[peer].context.ordinal()),
                    to: format!("device {}", station.context.ordinal()),
                    what: format!("the ping-pong flag of round {failed} did not arrive within {MOST_LOOKS} reads"),
                });
            }
        }
        Ok(seconds(&events[0].0, &events[0].1)? / f64::from(rounds) / 2.0)
    }

    fn kernels_of(&self, at: usize) -> Result<&Kernels, VmmError> {
        match (&self.stations[at].kernels, &self.no_kernels) {
            (Some(kernels), _) => Ok(kernels),
            (None, Some(error)) => Err(error.clone()),
            (None, None) => unreachable!("peerweave bug: the kernels of a device are missing, but no error is recorded"),
        }
    }

    fn enqueue(&self, method: Method, (from, to): (usize, usize), repeats: u32, shape: (u32, u32)) -> Result<(), VmmError> {
        let (near, far) = (&self.stations[from], &self.stations[to]);
        let ordinal = near.context.ordinal();
        let (source, target) = match method {
            Method::Stores | Method::CopyEngine => (near.source.memory::<u64>(ordinal)?, far.target.memory::<u64>(ordinal)?),
            Method::Loads => (far.source.memory::<u64>(ordinal)?, near.target.memory::<u64>(ordinal)?),
        };
        for _ in 0..repeats {
            if method == Method::CopyEngine {
                peerweave_vmm::copy(&near.stream, &mut target.clone(), &source)?;
            } else {
                let (read, write) = (source.read(&near.stream)?, target.read(&near.stream)?);
                let pieces = self.bytes as u64 / 16;
                // SAFETY: both ranges have that many pieces, and the device may access them. The
                // ranges stay mapped until the stream has completed, and no other work writes the
                // target.
                unsafe { self.kernels_of(from)?.copy(&near.stream, write.address(), read.address(), pieces, shape)? };
            }
        }
        Ok(())
    }

    /// Returns the number of wrong words at the start and at the end of the target memory. A word
    /// is wrong if it differs from the source.
    fn wrong(&self, method: Method, (from, to): (usize, usize), deadline: Instant) -> Result<usize, VmmError> {
        let (source, target) = if method == Method::Loads { (to, from) } else { (from, to) };
        let station = &self.stations[target];
        let memory: MappedMemory<u64> = station.target.memory(station.context.ordinal())?;
        let seed = 1 + self.stations[source].context.ordinal() as u64;
        let mut wrong = 0;
        for range in ends(memory.len()) {
            let found = peerweave_vmm::read(&station.stream, &memory.slice(range.clone())?, deadline)?;
            wrong += found.iter().zip(range).filter(|(found, at)| **found != pattern_word(seed, *at)).count();
        }
        Ok(wrong)
    }
}

impl Station {
    /// Records an event on the stream, after all work that is in the stream now.
    fn mark(&self) -> Result<CudaEvent, VmmError> {
        let event = self.context.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let event = event.map_err(CudaError::of("cuEventCreate")).map_err(DriverError::from)?;
        event.record(&self.stream).map_err(CudaError::of("cuEventRecord")).map_err(DriverError::from)?;
        Ok(event)
    }

    /// Waits until the stream has completed its work. If the deadline passes first, the error names
    /// `call`.
    fn wait(&self, call: &str, deadline: Instant) -> Result<(), VmmError> {
        let start = Instant::now();
        if peerweave_driver::wait(&self.stream, deadline)? {
            return Ok(());
        }
        let call = format!("{call}: waiting for a stream of device {}", self.context.ordinal());
        Err(VmmError::Timeout { call, waited: start.elapsed(), missing: Vec::new() })
    }

    /// Fills the source buffer. After a transfer, only the words at the start and at the end are
    /// compared. The host writes these words, each with a different value. The device fills the
    /// rest with copies of the words at the start.
    fn fill(&self, deadline: Instant) -> Result<(), VmmError> {
        let memory: MappedMemory<u64> = self.source.memory(self.context.ordinal())?;
        let write = |range: Range<usize>| {
            let seed = 1 + self.context.ordinal() as u64;
            let values: Vec<u64> = range.clone().map(|at| pattern_word(seed, at)).collect();
            peerweave_vmm::write(&self.stream, &mut memory.slice(range)?, &values, deadline)
        };
        let [first, last] = ends(memory.len());
        let mut filled = first.len();
        write(first)?;
        while filled < memory.len() {
            let more = filled.min(memory.len() - filled);
            peerweave_vmm::copy(&self.stream, &mut memory.slice(filled..filled + more)?, &memory.slice(0..more)?)?;
            filled += more;
        }
        write(last)
    }
}

/// Returns the seconds between two events that the stream has passed.
fn seconds(start: &CudaEvent, end: &CudaEvent) -> Result<f64, VmmError> {
    let milliseconds = start.elapsed_ms(end).map_err(CudaError::of("cuEventElapsedTime")).map_err(DriverError::from)?;
    Ok(f64::from(milliseconds) / 1e3)
}

/// Returns the 8-byte word that [`Station::fill`] writes at `index` of a source. `seed` differs for
/// each device, so that the sources differ.
fn pattern_word(seed: u64, index: usize) -> u64 {
    (seed << 48 | index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn wrong_value(call: &'static str, what: &'static str, value: impl std::fmt::Display, expected: &str) -> VmmError {
    Misuse::Value { call, what, value: value.to_string(), expected: expected.to_owned() }.into()
}

/// Returns two ranges of words, one at the start and one at the end of a source. Only these words
/// are compared. In a short source the two ranges overlap.
fn ends(len: usize) -> [Range<usize>; 2] {
    [0..COMPARED_WORDS.min(len), len.saturating_sub(COMPARED_WORDS)..len]
}

/// Allocates `bytes` bytes on the device with index `at`. Gives access to this device, and to each
/// other device that has peer access to this device. For every other device, adds an error to
/// `no_access`.
fn shared(
    contexts: &[Arc<CudaContext>],
    at: usize,
    bytes: usize,
    no_access: &mut BTreeMap<(usize, usize), VmmError>,
) -> Result<Mapping, VmmError> {
    let context = &contexts[at];
    let memory = PhysicalMemory::create(context, bytes, Exportable::NOWHERE)?;
    let alignment = Granularity::of_device(context.ordinal(), Exportable::NOWHERE)?.recommended.next_power_of_two();
    let mapping = Reservation::new(context, bytes, alignment)?.map(0, &memory, bytes)?;
    mapping.allow(&[context.ordinal()], Rights::ReadWrite)?;
    for (from, other) in contexts.iter().enumerate().filter(|(from, _)| *from != at) {
        if peer::pair(other.ordinal(), context.ordinal())?.access {
            mapping.allow(&[other.ordinal()], Rights::ReadWrite)?;
            continue;
        }
        let needs = format!("a path over which device {} can access the memory of device {}", other.ordinal(), context.ordinal());
        let found = "no path (cuDeviceCanAccessPeer returned 0)".to_owned();
        no_access.insert((from, at), VmmError::Unsupported { feature: "peer access", needs, found });
    }
    Ok(mapping)
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Probe({} devices, {} bytes)", self.stations.len(), self.bytes)
    }
}
