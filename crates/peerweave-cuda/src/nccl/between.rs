//! Messages between PEs on different hosts, which NCCL sends and receives.
//!
//! A job on several hosts normally has one communicator of all PEs. But NCCL refuses two ranks of
//! one host on one GPU. So if PEs on a host share a GPU, each pair of PEs on different hosts has
//! its own communicator instead. Communicators of pairs are intended for tests on machines with few
//! GPUs.
//!
//! Invariant: every PE enqueues the messages of a call in ascending order of the pairs of PEs. So
//! PEs cannot wait for each other in different communicators.

use std::sync::Arc;

use peerweave_bootstrap::Rendezvous;
use peerweave_driver::{CudaStream, DeviceBuffer as _, DeviceMemory, Keep, Raw};
use peerweave_nccl::{Communicator, Nccl, NcclError, UniqueId};
use peerweave_types::{Pe, Rank};

use super::{Watched, agreed, communicator_of_all, limit, pes_share_a_gpu};
use crate::error::CudaError;
use crate::gpu::Gpu;

/// A message that this PE sends to, or receives from, a PE on another host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pub(crate) pe: Pe,
    pub(crate) is_send: bool,
    /// Address of the message on this PE's device.
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

/// A communicator that connects this PE with PEs on other hosts.
struct Link {
    communicator: Communicator,
    /// The peer, if the communicator connects only this PE and one peer. `None` for the
    /// communicator of all PEs.
    other: Option<Pe>,
}

/// The NCCL communicators by which one PE exchanges messages with PEs on other hosts. If NCCL is
/// missing or fails on any PE, no PE has communicators, and `unavailable` is the reason.
#[derive(Default)]
pub(crate) struct Between {
    links: Box<[Link]>,
    unavailable: String,
    watched: Vec<Watched>,
}

/// Length in bytes of the first message between two PEs. This message makes NCCL connect the PEs.
const GREETING: u64 = 16;

impl Between {
    /// Connects the PEs on different hosts by NCCL. If NCCL is missing or fails on any PE, no PE
    /// uses NCCL.
    ///
    /// # Collective
    /// All PEs of the GPU's rendezvous.
    ///
    /// # Errors
    /// [`CudaError::Bootstrap`] names a PE that is lost or did not arrive. Errors of the driver.
    pub(crate) fn set_up(gpu: &Gpu) -> Result<Self, CudaError> {
        let rendezvous = gpu.rendezvous();
        if gpu.0.hosts.len() < 2 {
            return Ok(Self::default());
        }
        let without = |why: String| {
            tracing::warn!(why, "NCCL cannot be used between hosts; PEs of different hosts cannot communicate");
            Self { unavailable: format!("NCCL cannot be used between hosts: {why}"), ..Self::default() }
        };
        let label = format!("peerweave-cuda/between/{}", gpu.0.next_collectives());
        let agreed = |step: &str, failed: Option<String>| agreed(rendezvous, &format!("{label}/{step}"), failed, limit(gpu));
        let library = Nccl::load();
        let why = agreed("load", library.as_ref().err().map(ToString::to_string))?;
        let (Ok(library), None) = (library, &why) else { return Ok(without(why.unwrap_or_default())) };
        let created = match pes_share_a_gpu(gpu, &label)? {
            false => communicator_of_all(gpu, library).map(|communicator| vec![Link { communicator, other: None }]),
            true => pairs(gpu, library, &label),
        };
        let connected = created.and_then(|links| {
            let between = Self { links: links.into(), ..Self::default() };
            between.greet(gpu).map(|()| between)
        });
        let why = agreed("created", connected.as_ref().err().map(ToString::to_string))?;
        let mut between = match (connected, why) {
            (Ok(between), None) => between,
            (created, why) => {
                created.iter().for_each(Self::abort);
                return Ok(without(why.unwrap_or_default()));
            }
        };
        between.watched = between.communicators().map(|communicator| Watched::new(communicator, gpu)).collect();
        Ok(between)
    }

    /// Returns whether this PE can exchange messages with other hosts, because it has
    /// communicators.
    pub(crate) fn is_ready(&self) -> bool {
        !self.links.is_empty()
    }

    /// Returns the reason why this PE has no communicators. The text is empty if it has
    /// communicators, or if the job has one host.
    pub(crate) fn unavailable(&self) -> &str {
        &self.unavailable
    }

    /// Returns all communicators by which this PE exchanges messages with other hosts.
    pub(super) fn communicators(&self) -> impl Iterator<Item = &Communicator> {
        self.links.iter().map(|link| &link.communicator)
    }

    /// Ends the threads that watch for lost PEs. Such a thread aborts a communicator when a PE has
    /// died.
    pub(super) fn end_watches(&self) {
        self.watched.iter().for_each(Watched::end);
    }

    fn abort(&self) {
        // An error is ignored, because the failure that led to the abort is reported.
        self.communicators().for_each(|communicator| drop(communicator.abort(std::time::Duration::ZERO)));
    }

    /// Exchanges a first message with each PE on another host, and waits for completion. NCCL
    /// connects two PEs when they exchange their first message. Without `greet`, the host thread of
    /// a later call could wait until the other PE makes the matching call.
    fn greet(&self, gpu: &Gpu) -> Result<(), NcclError> {
        let (others, stream): (Vec<Pe>, _) = (pes_elsewhere(gpu).collect(), &gpu.0.stream);
        let memory = DeviceMemory::<u8>::alloc(gpu.context(), others.len() * 2 * GREETING as usize)?;
        let at = |index: usize| memory.address() + index as u64 * GREETING;
        let sends = others.iter().enumerate().map(|(index, pe)| (*pe, true, at(2 * index)));
        let receives = others.iter().enumerate().map(|(index, pe)| (*pe, false, at(2 * index + 1)));
        let messages: Vec<Remote> =
            sends.chain(receives).map(|(pe, is_send, at)| Remote { pe, is_send, at, bytes: GREETING }).collect();
        drop(memory.read(stream)?);
        // SAFETY: the read access above recorded the stream with the memory, so the memory is freed
        // only after the stream has completed the messages.
        unsafe { self.enqueue(stream, false, &messages) }?;
        self.communicators().try_for_each(|communicator| communicator.wait(stream, gpu.deadline()))
    }

    /// Enqueues messages to and from PEs on other hosts. The messages between two PEs arrive in the
    /// order of the list.
    ///
    /// # Errors
    /// Errors of NCCL. Some of the messages may have been enqueued, so after an error, the caller
    /// must poison the team.
    ///
    /// # Panics
    /// Panics if this PE has no communicators, or if a message names a PE on the host of this PE.
    ///
    /// # Safety
    /// The ranges are memory of this device. The memory stays allocated until the stream has
    /// completed the call. If `capturing` is true, it stays allocated while the graph exists.
    pub(crate) unsafe fn enqueue(&self, stream: &Arc<CudaStream>, capturing: bool, messages: &[Remote]) -> Result<(), NcclError> {
        // The caller guarantees that the memory outlives the graph, so the graph needs no real
        // owner.
        let keep: Option<Keep> = if capturing { Some(Arc::new(())) } else { None };
        for Link { communicator, other } in &self.links {
            let is_here = |message: &&Remote| message.bytes > 0 && other.is_none_or(|other| other == message.pe);
            let here = || messages.iter().filter(is_here);
            if here().next().is_none() {
                continue;
            }
            let device = communicator.cuda_device();
            // SAFETY: the caller guarantees that the ranges are memory of this device.
            let raw = |message: &Remote| unsafe { Raw::<u8>::new(message.at, message.bytes as usize, device, keep.clone()) };
            let mut ranges: Vec<(Raw<u8>, Rank, bool)> = here()
                .map(|message| {
                    let rank = match other {
                        Some(_) => Rank::new(1 - communicator.rank().get()),
                        None => Rank::new(message.pe.get()),
                    };
                    (raw(message), rank, message.is_send)
                })
                .collect();
            communicator.nccl().group(|group| {
                ranges.iter_mut().try_for_each(|(range, rank, is_send)| match is_send {
                    true => group.send(communicator, stream, &*range, *rank),
                    false => group.recv(communicator, stream, range, *rank),
                })
            })?;
        }
        Ok(())
    }
}

/// Returns the PEs on other hosts, in ascending order.
fn pes_elsewhere(gpu: &Gpu) -> impl Iterator<Item = Pe> + '_ {
    let (hosts, here) = (&gpu.0.hosts, gpu.0.hosts.of(gpu.pe()));
    (0..gpu.n_pes()).map(Pe::new).filter(move |pe| hosts.of(*pe) != here)
}

/// Creates a communicator between this PE and each PE on another host. All PEs create the
/// communicators in ascending order of the pairs of PEs.
fn pairs(gpu: &Gpu, library: Nccl, label: &str) -> Result<Vec<Link>, NcclError> {
    let (me, rendezvous) = (gpu.pe(), gpu.rendezvous());
    // All PEs create communicators in the same order of pairs: the order of the first PE `a` of a
    // pair `a < b`, then of `b`. So two PEs cannot wait for each other.
    let made = pes_elsewhere(gpu).map(|other| {
        let (first, second) = (me.min(other), me.max(other));
        let key = format!("{label}/{}-{}", first.get(), second.get());
        let id = id_of_pair(rendezvous, library, &key, me == first)?;
        let builder = Communicator::builder().nccl(library).deadline(gpu.deadline());
        let communicator = builder.init_rank(gpu.context(), 2, &id, Rank::new(u32::from(me == second)))?;
        Ok(Link { communicator, other: Some(other) })
    });
    made.collect()
}

/// Returns NCCL's unique id for the communicator of a pair of PEs. The first PE of the pair creates
/// the id, and the second PE gets it through the rendezvous.
fn id_of_pair(rendezvous: &Rendezvous, library: Nccl, key: &str, is_first: bool) -> Result<UniqueId, NcclError> {
    let failed = |source| NcclError::Bootstrap { call: "Cuda::new", source: Arc::new(source) };
    if is_first {
        let id = library.unique_id()?;
        rendezvous.put(key, id.as_bytes()).map_err(failed)?;
        return Ok(id);
    }
    let id = rendezvous.get(key).map_err(failed)?;
    rendezvous.remove(key).map_err(failed)?;
    id.as_slice().try_into()
}
