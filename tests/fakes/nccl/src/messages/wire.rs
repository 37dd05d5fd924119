//! Messages to other processes of the machine, over Unix sockets in the abstract namespace.
//!
//! Module `post` defines the meaning of messages. Invariant: sending never blocks; messages from
//! one process to another arrive in the order in which they were sent, or not at all after the
//! receiver has ended.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

use peerweave_fake_common::random_word;

use super::mailbox::{self, Bytes, Channel, Slot};
use super::post;
use crate::abi::{Code, Result, fail};

/// Address of a process's socket.
pub(crate) type Address = String;

struct Frame {
    slot: Slot,
    bytes: Bytes,
}

/// A process that receives messages.
struct Peer {
    frames: Sender<Frame>,
    /// Number of messages that were not yet passed to the system.
    unwritten: Arc<AtomicUsize>,
}

static OWN: OnceLock<Address> = OnceLock::new();
static OPENING: Mutex<()> = Mutex::new(());
static PEERS: LazyLock<Mutex<HashMap<Address, Peer>>> = LazyLock::new(Mutex::default);

fn system<T>(what: &str, error: &io::Error) -> Result<T> {
    fail(Code::SystemError, format!("{what}: {error}"))
}

/// Returns the address of this process; the process listens from the first call on.
pub(crate) fn own() -> Result<&'static Address> {
    let _one_at_a_time = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(own) = OWN.get() {
        return Ok(own);
    }
    let address = format!("peerweave-fake-nccl-{}-{:016x}", std::process::id(), random_word());
    let listener = match SocketAddr::from_abstract_name(&address).and_then(|name| UnixListener::bind_addr(&name)) {
        Ok(listener) => listener,
        Err(error) => return system("listening for other processes", &error),
    };
    let accept = move || {
        for stream in listener.incoming().flatten() {
            let _ = std::thread::Builder::new().name("fake-nccl-read".into()).spawn(move || read_all(stream));
        }
    };
    if let Err(error) = std::thread::Builder::new().name("fake-nccl-accept".into()).spawn(accept) {
        return system("starting the listener's thread", &error);
    }
    Ok(OWN.get_or_init(|| address))
}

fn read_all(mut stream: UnixStream) {
    let Ok(sender) = read_block(&mut stream).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()) else { return };
    while let Ok(slot) = read_slot(&mut stream) {
        let Ok(bytes) = read_block(&mut stream) else { break };
        post::arrived(slot, bytes.into());
    }
    post::process_died(&sender);
}

/// Maximum length of a message.
const LONGEST: u64 = 1 << 34;

fn read_block(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > LONGEST {
        // The sender is not this library in another process.
        return Err(io::Error::other("the length of a message is invalid"));
    }
    let length = usize::try_from(length).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn read_slot(stream: &mut UnixStream) -> io::Result<Slot> {
    let mut comm = [0; 16];
    let mut ranks = [[0; 4]; 2];
    let mut channel = [0; 1];
    let mut tag = [0; 8];
    stream.read_exact(&mut comm)?;
    stream.read_exact(&mut ranks[0])?;
    stream.read_exact(&mut ranks[1])?;
    stream.read_exact(&mut channel)?;
    stream.read_exact(&mut tag)?;
    let channel = Channel::from_number(channel[0]).ok_or_else(|| io::Error::other("an unknown channel"))?;
    Ok(Slot {
        comm: u128::from_le_bytes(comm),
        to: i32::from_le_bytes(ranks[0]),
        from: i32::from_le_bytes(ranks[1]),
        channel,
        tag: u64::from_le_bytes(tag),
    })
}

fn write_frame(stream: &mut UnixStream, frame: &Frame) -> io::Result<()> {
    let slot = &frame.slot;
    let mut head = Vec::with_capacity(41);
    head.extend_from_slice(&slot.comm.to_le_bytes());
    head.extend_from_slice(&slot.to.to_le_bytes());
    head.extend_from_slice(&slot.from.to_le_bytes());
    head.push(slot.channel as u8);
    head.extend_from_slice(&slot.tag.to_le_bytes());
    head.extend_from_slice(&(frame.bytes.len() as u64).to_le_bytes());
    stream.write_all(&head)?;
    stream.write_all(&frame.bytes)
}

fn connect(address: &Address) -> Result<Peer> {
    let own = own()?.clone();
    let mut stream = match SocketAddr::from_abstract_name(address).and_then(|name| UnixStream::connect_addr(&name)) {
        Ok(stream) => stream,
        Err(error) => return fail(Code::RemoteError, format!("connecting to the process at {address}: {error}")),
    };
    let (sender, frames) = mpsc::channel::<Frame>();
    let unwritten = Arc::new(AtomicUsize::new(0));
    let left = Arc::clone(&unwritten);
    let write = move || {
        let mut hello = (own.len() as u64).to_le_bytes().to_vec();
        hello.extend_from_slice(own.as_bytes());
        let mut alive = stream.write_all(&hello).is_ok();
        for frame in frames {
            alive = alive && write_frame(&mut stream, &frame).is_ok();
            if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                mailbox::interrupt();
            }
        }
    };
    match std::thread::Builder::new().name("fake-nccl-write".into()).spawn(write) {
        Ok(_) => Ok(Peer { frames: sender, unwritten }),
        Err(error) => system("starting a writer's thread", &error),
    }
}

/// Sends a message to another process.
pub(super) fn send(address: &Address, slot: Slot, bytes: Bytes) -> Result {
    let mut peers = PEERS.lock().unwrap_or_else(PoisonError::into_inner);
    if !peers.contains_key(address) {
        let peer = connect(address)?;
        peers.insert(address.clone(), peer);
    }
    // A writer's thread ends only with this map's entry, so that the message is always taken.
    let peer = &peers[address];
    peer.unwritten.fetch_add(1, Ordering::AcqRel);
    let _ = peer.frames.send(Frame { slot, bytes });
    Ok(())
}

/// Waits until messages to some processes were passed to the system. Then the messages arrive even
/// if this process ends.
pub(crate) fn flush(addresses: &[Address], stop: &dyn Fn() -> bool) {
    let waiting: Vec<_> = {
        let peers = PEERS.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.iter().filter_map(|address| peers.get(address)).map(|peer| Arc::clone(&peer.unwritten)).collect()
    };
    if !waiting.is_empty() {
        mailbox::wait_until(&|| stop() || waiting.iter().all(|unwritten| unwritten.load(Ordering::Acquire) == 0), None);
    }
}
