//! Connects ranks that share a unique id.
//!
//! The process that created an id is the server of the id: it collects the ranks that join by the
//! id. With several ids, each server collects its share of the ranks and forwards them to the
//! server of the first id, as in NCCL.
//!
//! The ranks of a derived communicator know each other already. Invariant: a server serves an id
//! once, and the server of the first id sends the complete list to all ranks.

use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use peerweave_fake_common::random_word;

use super::join::{Join, Reader, put_text};
use super::mailbox::{self, Channel, Slot};
use super::members::{Members, check_devices};
use super::wire::{self, Address};
use super::{numbers, post};
use crate::abi::{Code, Result, UniqueId, fail, invalid};
use crate::report::log;

const MARK: &[u8; 8] = b"FAKENCCL";

/// The ranks that have joined by an id so far.
struct Waiting {
    ranks: i32,
    /// Number of ranks that join by this id.
    share: i32,
    came: BTreeMap<i32, (Join, u64)>,
}

/// State of the ids of this process.
enum Served {
    Open(Option<Waiting>),
    Done,
}

static IDS: LazyLock<Mutex<HashMap<u128, Served>>> = LazyLock::new(Mutex::default);

fn ids() -> MutexGuard<'static, HashMap<u128, Served>> {
    IDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates an id that this process serves.
pub(crate) fn make_id() -> Result<UniqueId> {
    let number = numbers::wide();
    let address = wire::own()?;
    let mut bytes = [0; 128];
    bytes[..8].copy_from_slice(MARK);
    bytes[8..24].copy_from_slice(&number.to_le_bytes());
    bytes[24] = u8::try_from(address.len()).expect("the length of the address fits one byte");
    bytes[25..25 + address.len()].copy_from_slice(address.as_bytes());
    ids().insert(number, Served::Open(None));
    Ok(UniqueId { bytes })
}

fn parse(id: &UniqueId) -> Result<(u128, Address)> {
    let length = usize::from(id.bytes[24]);
    if id.bytes[..8] != MARK[..] || length > 100 {
        return invalid("the unique id was not created by ncclGetUniqueId");
    }
    let number = u128::from_le_bytes(id.bytes[8..24].try_into().expect("a number has sixteen bytes"));
    Ok((number, String::from_utf8_lossy(&id.bytes[25..25 + length]).into_owned()))
}

/// Returns an error if no process created the id.
pub(crate) fn check_id(id: &UniqueId) -> Result {
    parse(id).map(drop)
}

/// Returns the index of the id by which a rank joins. The ids divide the ranks into shares that
/// differ by at most one rank; the first shares are the larger ones.
fn id_of(rank: i32, ranks: i32, ids: i32) -> i32 {
    let (small, larger) = (ranks / ids, ranks % ids);
    let in_larger = larger * (small + 1);
    if rank < in_larger { rank / (small + 1) } else { larger + (rank - in_larger) / small }
}

/// Joins the other ranks by one or several ids; stops when `stop` returns true.
pub(crate) fn join(ids: &[UniqueId], ranks: i32, rank: i32, device: i32, stop: &dyn Fn() -> bool) -> Result<Members> {
    let count = i32::try_from(ids.len()).unwrap_or(i32::MAX);
    let mine = id_of(rank, ranks, count);
    let ((number, first), (own_number, root)) = (parse(&ids[0])?, parse(&ids[mine as usize])?);
    let share = if count == 1 { ranks } else { (0..ranks).filter(|rank| id_of(*rank, ranks, count) == mine).count() as i32 };
    let nonce = random_word();
    // All ranks report to the first id in the end.
    let join = Join { ranks, share: if mine == 0 { ranks } else { share }, device, address: wire::own()?.clone(), number, first };
    post::send(&root, Slot { comm: own_number, to: -1, from: rank, channel: Channel::Join, tag: nonce }, join.bytes().into())?;
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

/// Handles a rank that joins an id of this process.
pub(super) fn joined(slot: Slot, bytes: &[u8]) {
    let join = Join::read(bytes);
    let is_first = slot.comm == join.number;
    let mut ids = ids();
    let came = match ids.get_mut(&slot.comm) {
        Some(Served::Open(waiting)) => {
            let waiting = waiting.get_or_insert_with(|| Waiting { ranks: join.ranks, share: join.share, came: BTreeMap::new() });
            if (waiting.ranks, waiting.share) != (join.ranks, join.share) || waiting.came.contains_key(&slot.from) {
                // As in NCCL, whose root only prints a warning: the communicator is never created.
                log::line(&format!(
                    "mismatch in a unique id: rank {} of {} has joined before, or with another number of ranks",
                    slot.from, join.ranks
                ));
                return;
            }
            let share = join.share as usize;
            waiting.came.insert(slot.from, (join, slot.tag));
            if waiting.came.len() < share {
                return;
            }
            let came = std::mem::take(&mut waiting.came);
            ids.insert(slot.comm, Served::Done);
            came
        }
        Some(Served::Done) | None => {
            drop(ids);
            return answer(&join, slot.from, slot.tag, 0_i32.to_le_bytes().to_vec());
        }
    };
    drop(ids);
    if !is_first {
        for (rank, (join, nonce)) in came {
            let to_first = Slot { comm: join.number, to: -1, from: rank, channel: Channel::Join, tag: nonce };
            let handed_on = Join { share: join.ranks, ..join };
            let _ = post::send(&handed_on.first, to_first, handed_on.bytes().into());
        }
        return;
    }
    let mut table = (came.len() as i32).to_le_bytes().to_vec();
    for (join, _) in came.values() {
        table.extend_from_slice(&join.device.to_le_bytes());
        put_text(&mut table, &join.address);
    }
    let mut came: Vec<_> = came.into_iter().collect();
    // The ranks of this process are served last, because a rank that continues may end the process.
    came.sort_by_key(|(_, (join, _))| wire::own().is_ok_and(|own| *own == join.address));
    for (rank, (join, nonce)) in came {
        answer(&join, rank, nonce, table.clone());
    }
}

fn answer(join: &Join, rank: i32, nonce: u64, table: Vec<u8>) {
    let slot = Slot { comm: join.number, to: rank, from: -1, channel: Channel::Table, tag: nonce };
    // A rank that died meanwhile cannot be notified, and NCCL would not notify the others.
    let _ = post::send(&join.address, slot, table.into());
}
