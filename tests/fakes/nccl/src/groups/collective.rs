//! Runs collectives: the ranks exchange their data and compute.
//!
//! Module `arithmetic` reduces. Invariant: contributions are combined only if their kind, type,
//! operator, root and count are equal. Otherwise the communicator hangs, as in NCCL.

use super::stop::{Step, Stopped, mismatch};
use super::work::{Collective, Kind};
use crate::abi::{read, write};
use crate::arithmetic::compute;
use crate::comm::Comm;
use crate::messages::{Bytes, Channel};

/// Length of the header of a message, in bytes. The header describes the collective.
const HEAD: usize = 16;

fn head(collective: &Collective) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = collective.kind as u8;
    head[1] = collective.dtype as u8;
    head[2] = collective.op.number();
    head[4..8].copy_from_slice(&collective.root.to_le_bytes());
    head[8..].copy_from_slice(&(collective.count as u64).to_le_bytes());
    head
}

/// Runs a collective of one rank.
pub(super) fn run_collective(comm: &Comm, collective: &Collective) -> Step {
    let Collective { kind, send, receive, count, dtype, op, root } = *collective;
    let members = comm.who();
    let (rank, ranks) = (members.rank, members.ranks());
    let everybody = 0..ranks;
    let bytes = count * dtype.size();
    let number = {
        let mut state = comm.state();
        state.collective += 1;
        state.collective
    };
    let head = head(collective);
    let message = |data: &[u8]| -> Bytes { [&head[..], data].concat().into() };
    let post = |to: i32, message: Bytes| comm.send(to, Channel::Collective, number, message);
    // Returns the data of one rank. If it does not match this rank's call, waits until the
    // communicator is stopped.
    let get = |from: i32, length: usize| -> Step<Bytes> {
        let message = comm.receive(from, Channel::Collective, number).ok_or(Stopped)?;
        if message[..HEAD] != head || message.len() != HEAD + length {
            mismatch(comm, &format!("collective {number}: rank {from} sent {:?}, expected {head:?}", &message[..HEAD]))?;
        }
        Ok(message)
    };
    let part = |index: i32| index as usize * bytes;
    let reduced = |length: usize| -> Step<Vec<u8>> {
        let mut total = get(0, length)?[HEAD..].to_vec();
        for from in 1..ranks {
            compute::combine(&mut total, &get(from, length)?[HEAD..], op, dtype);
        }
        compute::finish(&mut total, op, dtype, ranks as u32);
        Ok(total)
    };
    let prepared = |length: usize| {
        let mut data = read(send, length);
        compute::prepare(&mut data, op, dtype, ranks as u32);
        data
    };
    match kind {
        Kind::AllReduce => {
            let data = message(&prepared(bytes));
            everybody.for_each(|to| post(to, data.clone()));
            write(receive, &reduced(bytes)?);
        }
        Kind::Reduce => {
            post(root, message(&prepared(bytes)));
            if rank == root {
                write(receive, &reduced(bytes)?);
            }
        }
        Kind::ReduceScatter => {
            let data = prepared(part(ranks));
            everybody.for_each(|to| post(to, message(&data[part(to)..part(to + 1)])));
            write(receive, &reduced(bytes)?);
        }
        Kind::Broadcast => {
            if rank == root {
                let data = message(&read(send, bytes));
                everybody.for_each(|to| post(to, data.clone()));
            }
            write(receive, &get(root, bytes)?[HEAD..]);
        }
        Kind::AllGather => {
            let data = message(&read(send, bytes));
            everybody.clone().for_each(|to| post(to, data.clone()));
            for from in everybody {
                write(receive + part(from), &get(from, bytes)?[HEAD..]);
            }
        }
        Kind::AllToAll => {
            let data = read(send, part(ranks));
            everybody.clone().for_each(|to| post(to, message(&data[part(to)..part(to + 1)])));
            for from in everybody {
                write(receive + part(from), &get(from, bytes)?[HEAD..]);
            }
        }
        Kind::Gather => {
            post(root, message(&read(send, bytes)));
            if rank == root {
                for from in everybody {
                    write(receive + part(from), &get(from, bytes)?[HEAD..]);
                }
            }
        }
        Kind::Scatter => {
            if rank == root {
                let data = read(send, part(ranks));
                everybody.for_each(|to| post(to, message(&data[part(to)..part(to + 1)])));
            }
            write(receive, &get(root, bytes)?[HEAD..]);
        }
    }
    Ok(())
}
