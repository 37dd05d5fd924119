//! Checks device memory as operands: addresses, owners, and refused calls.

use peerweave_core::backend::{Backend, Caps, DeviceOwner, Op, Place, StreamBackend};
use peerweave_core::noop::{Call, Noop};
use peerweave_core::{Error, MisuseKind, OnDevice, Rank, ReduceOp, World};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

const DEVICE: u32 = 3;

/// Memory of a simulated device, which records the notifications that its owner gets.
#[derive(Debug)]
struct Memory {
    words: Box<[f32]>,
    refuses: AtomicBool,
    streams: Mutex<Vec<bool>>,
    after: AtomicUsize,
}

impl DeviceOwner for Memory {
    fn before(&self, stream: Option<&dyn StreamBackend>) -> Result<(), Error> {
        if self.refuses.load(SeqCst) {
            return Err(Error::system("before", std::io::Error::other("the memory is in a graph")));
        }
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream.is_some());
        Ok(())
    }

    fn after(&self, _: &dyn StreamBackend) {
        self.after.fetch_add(1, SeqCst);
    }
}

impl Memory {
    fn new(values: &[f32]) -> Arc<Self> {
        Arc::new(Self {
            words: values.into(),
            refuses: AtomicBool::new(false),
            streams: Mutex::default(),
            after: AtomicUsize::new(0),
        })
    }

    fn handle(self: &Arc<Self>, ordinal: u32) -> OnDevice<f32> {
        let address = self.words.as_ptr().expose_provenance() as u64;
        // SAFETY: the box lives as long as the owner. The no-op backend reads the elements at this
        // address, and no test here writes to them.
        unsafe { OnDevice::from_raw(address, self.words.len(), ordinal, Arc::clone(self) as Arc<dyn DeviceOwner>) }
    }

    fn before(&self) -> Vec<bool> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn on_device() -> (Arc<Noop>, World) {
    let mut caps = Caps::new(1 << 20, 8, "a simulated device");
    caps.device = Some(DEVICE);
    let noop = Noop::with_caps(0, 1, caps);
    let world = World::new(noop.clone()).unwrap();
    (noop, world)
}

#[test]
fn device_memory_is_passed_to_the_backend_by_address() {
    let (noop, world) = on_device();
    let (memory, x) = (Memory::new(&[1.0, 2.0, 3.0]), world.alloc_zeroed::<f32>(2).unwrap());
    let handle = memory.handle(DEVICE).slice(1..).unwrap();
    noop.take_calls();
    let stream = world.stream().unwrap();
    world.team().all_reduce(&stream, &handle, &x, ReduceOp::Sum).unwrap().wait().unwrap();
    world.team().put_blocking(&handle, &x, Rank::new(0)).unwrap();
    let [Call::Submit(Op::Collective(reduce)), Call::Run(Op::Put(put))] = &noop.take_calls()[..] else {
        panic!("expected two operations")
    };
    let place = Place::Device { address: handle.address(), ordinal: DEVICE };
    assert_eq!((reduce.send, put.source), (Some(place), place));
    assert_eq!(x.to_vec().unwrap(), [2.0, 3.0]);
    // The owner was notified with the stream of the first operation, and without a stream for the
    // second.
    assert_eq!((memory.before(), memory.after.load(SeqCst)), (vec![true, false], 1));
}

#[test]
fn device_memory_is_refused_if_the_backend_has_no_device() {
    let noop = Noop::new(0, 1);
    let world = World::new(noop.clone()).unwrap();
    let (memory, x) = (Memory::new(&[1.0]), world.alloc::<f32>(1).unwrap());
    noop.take_calls();
    let error = world.team().put_blocking(&memory.handle(0), &x, Rank::new(0)).unwrap_err();
    assert!(matches!(error, Error::Unsupported { call: "put_blocking", backend: "noop", .. }), "{error}");
    assert!(noop.take_calls().is_empty() && memory.before().is_empty());
}

#[test]
fn memory_of_another_device_is_refused() {
    let (noop, world) = on_device();
    let (memory, x) = (Memory::new(&[1.0]), world.alloc::<f32>(1).unwrap());
    noop.take_calls();
    let error = world.team().put_blocking(&memory.handle(5), &x, Rank::new(0)).unwrap_err();
    let wrong = MisuseKind::WrongDevice { argument: "source", found: 5, expected: DEVICE };
    assert_eq!(error.misuse(), Some(&wrong));
    assert_eq!(
        error.to_string(),
        "put_blocking: `source` is memory of device 5, expected memory of device 3 (the device of this PE)"
    );
    assert!(noop.take_calls().is_empty());
}

#[test]
fn error_of_a_device_memory_owner_prevents_the_operation() {
    let (noop, world) = on_device();
    let (memory, x) = (Memory::new(&[1.0]), world.alloc::<f32>(1).unwrap());
    let (stream, handle) = (world.stream().unwrap(), memory.handle(DEVICE));
    noop.take_calls();
    memory.refuses.store(true, SeqCst);
    let team = world.team();
    assert!(matches!(team.put(&stream, &handle, &x, Rank::new(0)), Err(Error::System { .. })));
    assert!(matches!(team.put_blocking(&handle, &x, Rank::new(0)), Err(Error::System { .. })));
    assert!(matches!(team.group(&stream, |g| g.put(&handle, &x, Rank::new(0))), Err(Error::System { .. })));
    assert!(matches!(team.group_blocking(|g| g.put(&handle, &x, Rank::new(0))), Err(Error::System { .. })));
    assert!(noop.take_calls().is_empty());
}

#[test]
fn stream_keeps_device_memory_alive_until_completion() {
    let (noop, world) = on_device();
    let (memory, x) = (Memory::new(&[4.0]), world.alloc_zeroed::<f32>(1).unwrap());
    noop.hold_streams(true);
    let (stream, handle) = (world.stream().unwrap(), memory.handle(DEVICE));
    let ticket = world.team().put(&stream, &handle, &x, Rank::new(0)).unwrap();
    drop(handle);
    assert_eq!(Arc::strong_count(&memory), 2, "the queue also holds the memory");
    noop.run_all();
    ticket.wait().unwrap();
    assert_eq!((Arc::strong_count(&memory), x.load(0).unwrap()), (1, 4.0));
}

#[test]
fn owner_of_device_memory_is_notified_of_group_operations() {
    let (noop, world) = on_device();
    let (memory, x) = (Memory::new(&[4.0, 5.0]), world.alloc_zeroed::<f32>(2).unwrap());
    noop.hold_streams(true);
    let (stream, me) = (world.stream().unwrap(), Rank::new(0));
    world.team().group(&stream, |g| g.put(&memory.handle(DEVICE), &x, me)).unwrap();
    assert_eq!((memory.before(), memory.after.load(SeqCst), Arc::strong_count(&memory)), (vec![true], 1, 2));
    noop.run_all();
    assert_eq!((Arc::strong_count(&memory), x.to_vec().unwrap()), (1, vec![4.0, 5.0]));
    let handle = memory.handle(DEVICE);
    world.team().group_blocking(|g| g.put(&handle, &x, me)).unwrap();
    assert_eq!(memory.before(), [true, false]);
}

#[test]
fn overlapping_device_buffers_are_refused_in_and_outside_groups() {
    let (_noop, world) = on_device();
    let (memory, me) = (Memory::new(&[1.0, 2.0, 3.0]), Rank::new(0));
    let (first, last) = (memory.handle(DEVICE).slice(..2).unwrap(), memory.handle(DEVICE).slice(1..).unwrap());
    let refused = world.team().group_blocking(|g| {
        g.send(&first, me)?;
        g.recv(&last, me)
    });
    assert!(matches!(refused.unwrap_err().misuse(), Some(MisuseKind::OverlapWithin { .. })));
    let refused = world.team().all_reduce_blocking(&first, &last, ReduceOp::Sum);
    assert!(matches!(refused.unwrap_err().misuse(), Some(MisuseKind::Overlap { .. })));
}

#[test]
fn symmetric_memory_of_a_device_has_no_host_address() {
    let (noop, world) = on_device();
    let x = world.alloc_zeroed::<f32>(2).unwrap();
    // SAFETY: both calls fail, so there is no slice.
    let slices = unsafe { [x.as_slice().map(drop), x.as_mut_slice().map(drop)] };
    for refused in slices.into_iter().chain([x.as_ptr().map(drop)]) {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::Unsupported { backend: "noop", .. }), "{error}");
    }
    assert!(matches!(x.device_address(), Some((address, 3)) if address != 0));
    // Copies still work.
    x.copy_from(&[1.0, 2.0]).unwrap();
    assert_eq!(x.to_vec().unwrap(), [1.0, 2.0]);
    assert_eq!(World::new(Noop::new(0, 1)).unwrap().alloc::<f32>(1).unwrap().device_address(), None);
    assert_eq!(noop.caps().device, Some(DEVICE));
}
