//! How ranks that share a unique id find each other.
//!
//! What is not here: communicators made from others, which know their ranks already (`derive`). Invariant: the process that made an
//! id serves it once: it collects the ranks and answers all of them together.

use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::abi::{Code, Result, UniqueId, fail, invalid, misuse};
use crate::mailbox::{self, Channel, Slot};
use crate::post;
use crate::wire::{self, Address};

const MARK: &[u8; 8] = b"FAKENCCL";

/// Who is in a communicator.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    /// The communicator's number, the same in all its ranks.
    pub(crate) id: u128,
    pub(crate) rank: i32,
    /// The process of each rank.
    pub(crate) addresses: Vec<Address>,
    /// The device of each rank, as its process numbers them.
    pub(crate) devices: Vec<i32>,
}

impl Members {
    /// How many ranks there are.
    pub(crate) fn ranks(&self) -> i32 {
        i32::try_from(self.addresses.len()).unwrap_or(i32::MAX)
    }
}

/// The ranks of an id that have come so far.
struct Waiting {
    ranks: i32,
    came: BTreeMap<i32, (Address, i32, u64)>,
}

/// What this process knows of the ids it made.
enum Served {
    Open(Option<Waiting>),
    Done,
}

static IDS: LazyLock<Mutex<HashMap<u128, Served>>> = LazyLock::new(Mutex::default);

fn ids() -> MutexGuard<'static, HashMap<u128, Served>> {
    IDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes an id that this process serves.
pub(crate) fn make_id() -> Result<UniqueId> {
    let number = crate::random::wide();
    let address = wire::own()?;
    let mut bytes = [0; 128];
    bytes[..8].copy_from_slice(MARK);
    bytes[8..24].copy_from_slice(&number.to_le_bytes());
    bytes[24] = u8::try_from(address.len()).expect("an address is short");
    bytes[25..25 + address.len()].copy_from_slice(address.as_bytes());
    ids().insert(number, Served::Open(None));
    Ok(UniqueId { bytes })
}

fn parse(id: &UniqueId) -> Result<(u128, Address)> {
    let length = usize::from(id.bytes[24]);
    if id.bytes[..8] != MARK[..] || length > 100 {
        return invalid("the unique id is not one that ncclGetUniqueId made");
    }
    let number = u128::from_le_bytes(id.bytes[8..24].try_into().expect("sixteen bytes"));
    Ok((number, String::from_utf8_lossy(&id.bytes[25..25 + length]).into_owned()))
}

/// Refuses an id that no process made.
pub(crate) fn check_id(id: &UniqueId) -> Result {
    parse(id).map(drop)
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

/// Reads numbers and texts that another rank wrote.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    /// The next number.
    pub(crate) fn number(&mut self) -> i32 {
        let (head, rest) = self.0.split_at(4);
        self.0 = rest;
        i32::from_le_bytes(head.try_into().expect("four bytes"))
    }

    /// The next text.
    pub(crate) fn text(&mut self) -> String {
        let length = self.number() as usize;
        let (head, rest) = self.0.split_at(length);
        self.0 = rest;
        String::from_utf8_lossy(head).into_owned()
    }
}

/// Meets the other ranks of an id; gives up once `stop` says so.
pub(crate) fn join(id: &UniqueId, ranks: i32, rank: i32, device: i32, stop: &dyn Fn() -> bool) -> Result<Members> {
    let (number, root) = parse(id)?;
    let nonce = crate::random::word();
    let mut join = ranks.to_le_bytes().to_vec();
    join.extend_from_slice(&device.to_le_bytes());
    put_text(&mut join, wire::own()?);
    post::send(&root, Slot { comm: number, to: -1, from: rank, channel: Channel::Join, tag: nonce }, join.into())?;
    let slot = Slot { comm: number, to: rank, from: -1, channel: Channel::Table, tag: nonce };
    let Some(answer) = mailbox::take(slot, stop) else {
        return fail(Code::InternalError, "initialisation was aborted");
    };
    let mut reader = Reader(&answer);
    let count = reader.number();
    if count == 0 {
        return fail(Code::RemoteError, "the unique id was used before");
    }
    let (mut addresses, mut devices) = (Vec::new(), Vec::new());
    for _ in 0..count {
        devices.push(reader.number());
        addresses.push(reader.text());
    }
    let members = Members { id: number, rank, addresses, devices };
    check_devices(&members)?;
    Ok(members)
}

/// Two ranks of one process on one device are refused, as NCCL refuses them.
pub(crate) fn check_devices(members: &Members) -> Result {
    let mut seen = HashMap::new();
    for (rank, place) in members.addresses.iter().zip(&members.devices).enumerate() {
        if let Some(other) = seen.insert(place, rank) {
            return misuse(format!("Duplicate GPU detected : rank {other} and rank {rank} both on CUDA device {}", place.1));
        }
    }
    Ok(())
}

/// A rank joins an id of this process.
pub(crate) fn joined(slot: Slot, bytes: &[u8]) {
    let mut reader = Reader(bytes);
    let (ranks, device, address) = (reader.number(), reader.number(), reader.text());
    let mut ids = ids();
    let answers = match ids.get_mut(&slot.comm) {
        Some(Served::Open(waiting)) => {
            let waiting = waiting.get_or_insert_with(|| Waiting { ranks, came: BTreeMap::new() });
            if waiting.ranks != ranks || waiting.came.contains_key(&slot.from) {
                // As in NCCL, whose root only prints a warning: the communicator never comes into being.
                crate::log::line(&format!("mismatch in a unique id: rank {} of {ranks} does not fit", slot.from));
                return;
            }
            waiting.came.insert(slot.from, (address, device, slot.tag));
            if waiting.came.len() < ranks as usize {
                return;
            }
            let mut table = ranks.to_le_bytes().to_vec();
            for (address, device, _) in waiting.came.values() {
                table.extend_from_slice(&device.to_le_bytes());
                put_text(&mut table, address);
            }
            let answers = waiting.came.iter().map(|(rank, (address, _, nonce))| (*rank, address.clone(), *nonce, table.clone()));
            let mut answers: Vec<_> = answers.collect();
            // The ranks of this process come last: one that goes on may end the process.
            answers.sort_by_key(|(_, address, ..)| wire::own().is_ok_and(|own| own == address));
            ids.insert(slot.comm, Served::Done);
            answers
        }
        Some(Served::Done) | None => vec![(slot.from, address, slot.tag, 0_i32.to_le_bytes().to_vec())],
    };
    drop(ids);
    for (rank, address, nonce, table) in answers {
        let slot = Slot { comm: slot.comm, to: rank, from: -1, channel: Channel::Table, tag: nonce };
        // A rank that died meanwhile cannot be told, and NCCL would not tell the others.
        let _ = post::send(&address, slot, table.into());
    }
}
