//! The PEs of a machine put a multicast object together: one creates it, the others import it, each adds its device.
//!
//! Invariant: a failure of any PE, the switch included, is told to all, and then none keeps the object.

use std::sync::Arc;

use peerweave_bootstrap::Rendezvous;
use peerweave_driver::{CudaContext, multicast_switch};
use peerweave_types::Pe;

use super::object::{Building, MulticastId, SharedMulticast, Team};
use super::{MulticastProperties, check_device};
use crate::agree::{Disagreement, Reader, agree, unreadable};
use crate::buffer::wrong_value;
use crate::descriptor::{self, Descriptor};
use crate::error::{Misuse, VmmError};
use crate::physical::Exportable;

const CALL: &str = "multicast::collective";

/// A multicast object of `bytes` with the device of each member, as a complete team.
///
/// # Collective
/// All PEs of the job, with the same length and the same label, which names the object. `members` are the PEs of one machine in ascending order; each
/// PE is in its own list, and all members have the same list. (PEs of other machines make an object of their own.)
///
/// # Errors
/// [`VmmError::MulticastDisabled`] before any call of the driver, and [`VmmError::Peer`] on the others; [`Misuse::Diverged`] on all where the lists differ;
/// as [`Building::create`] and every collective call.
pub fn collective(
    rendezvous: &Rendezvous,
    context: &Arc<CudaContext>,
    members: &[Pe],
    label: &str,
    bytes: usize,
) -> Result<Team, VmmError> {
    Ok(put_together(rendezvous, context, members, label, bytes)?)
}

/// The same, with what a failure means for the other PEs.
pub(super) fn put_together(
    rendezvous: &Rendezvous,
    context: &Arc<CudaContext>,
    members: &[Pe],
    label: &str,
    bytes: usize,
) -> Result<Team, Disagreement> {
    let call = format!("{CALL}({label}, {bytes} bytes)");
    let round = |what: &str| format!("peerweave-vmm/multicast/{label}/{what}");
    let properties = MulticastProperties {
        devices: members.len() as u32,
        bytes,
        exportable: if members.len() > 1 { Exportable::FILE_DESCRIPTOR } else { Exportable::NOWHERE },
        flags: 0,
    };
    let me = rendezvous.pe();
    let begun = begin(me, context, members, properties);
    let statement = begun.as_ref().map(|begun| state(members, begun.as_ref())).map_err(Clone::clone);
    let statements = agree(rendezvous, &round("created"), &call, statement)?;
    // All read the same, and come to the same end.
    let id = same_members(&call, &statements, members[0]).map_err(Disagreement::Known)?;
    let added = match begun.map_err(Disagreement::Known)? {
        Some((building, None)) => Ok(building),
        Some((building, fd)) => descriptor::share(rendezvous, members, fd).map(|_| building),
        // SAFETY: the first member made the same call, with the same members and length, and exported its multicast object under this id.
        None => descriptor::share(rendezvous, members, None)
            .and_then(|fd| unsafe { Building::import(context, SharedMulticast::FileDescriptor { fd, properties, id }) }),
    };
    // Who did not come, or is lost, hears nothing in the next round either.
    let added = match added {
        Err(error) if error.is_loss() => return Err(Disagreement::Unknown(error)),
        added => added,
    };
    let added = added.and_then(|mut building| building.add_device(context).map(|()| building));
    agree(rendezvous, &round("added"), &call, added.as_ref().map(|_| Vec::new()).map_err(Clone::clone))?;
    Ok(added.map_err(Disagreement::Known)?.into_team())
}

/// What the first member makes, and the descriptor for the others, if there are any.
type Begun = (Building, Option<Descriptor>);

fn begin(me: Pe, context: &Arc<CudaContext>, members: &[Pe], properties: MulticastProperties) -> Result<Option<Begun>, VmmError> {
    multicast_switch()?;
    if !members.is_sorted_by(|one, next| one < next) || !members.contains(&me) {
        return Err(wrong_value(CALL, "members", format!("{members:?}"), "PEs in ascending order, each once, with this one"));
    }
    check_device(context.ordinal())?;
    if members[0] != me {
        return Ok(None);
    }
    let building = Building::create(context, properties)?;
    if members.len() == 1 {
        return Ok(Some((building, None)));
    }
    let SharedMulticast::FileDescriptor { fd, .. } = building.export()? else { unreachable!("a descriptor was asked for") };
    // For the copies on their way and the connections: for the others, this PE would only be late.
    descriptor::check_room(&fd, 2 * members.len() + 2)?;
    Ok(Some((building, Some(fd))))
}

/// What a PE tells of its part: the object that it made, if it did, and its members.
fn state(members: &[Pe], begun: Option<&Begun>) -> Vec<u8> {
    let id = begun.map_or([0; 16], |(building, _)| building.id().0);
    id.into_iter().chain(members.iter().flat_map(|pe| pe.get().to_le_bytes())).collect()
}

/// That every member of any list has that list; gives the id of the object that `first` made.
fn same_members(call: &str, statements: &[Vec<u8>], first: Pe) -> Result<MulticastId, VmmError> {
    let mut read = Vec::with_capacity(statements.len());
    for (pe, statement) in (0..).map(Pe::new).zip(statements) {
        let mut reader = Reader(statement);
        let id = reader.bytes().ok_or_else(|| unreadable(call, pe))?;
        let (words, rest) = reader.rest().as_chunks::<4>();
        if !rest.is_empty() {
            return Err(unreadable(call, pe));
        }
        read.push((id, words.iter().map(|word| Pe::new(u32::from_le_bytes(*word))).collect::<Vec<_>>()));
    }
    for (one, (_, members)) in (0..).map(Pe::new).zip(&read) {
        for other in members {
            let theirs = read.get(other.index()).map(|(_, theirs)| theirs);
            if theirs != Some(members) {
                let has =
                    |members: Option<&Vec<Pe>>| members.map_or("no such PE".to_owned(), |members| format!("members {members:?}"));
                let (one_has, other_has) = (has(Some(members)), has(theirs));
                return Err(Misuse::Diverged { call: call.to_owned(), one, one_has, other: *other, other_has }.into());
            }
        }
    }
    match read.get(first.index()) {
        Some((id, _)) => Ok(MulticastId(*id)),
        None => Err(unreadable(call, first)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(members: &[u32]) -> Vec<u8> {
        state(&members.iter().copied().map(Pe::new).collect::<Vec<_>>(), None)
    }

    fn told(statements: &[Vec<u8>]) -> String {
        same_members("it", statements, Pe::new(0)).expect_err("they differ").to_string()
    }

    #[test]
    fn each_machine_has_a_list_of_its_own_and_its_pes_have_the_same() {
        let machines = [statement(&[0, 2]), statement(&[1, 3]), statement(&[0, 2]), statement(&[1, 3])];
        assert_eq!(same_members("it", &machines, Pe::new(0)).map_err(|error| error.to_string()), Ok(MulticastId([0; 16])));
        assert_eq!(
            told(&[statement(&[0, 1]), statement(&[0, 1, 2]), statement(&[0, 1, 2])]),
            "it: the PEs disagree: PE 0 has members [Pe(0), Pe(1)], PE 1 has members [Pe(0), Pe(1), Pe(2)]"
        );
        assert!(told(&[statement(&[0, 1]), statement(&[1])]).contains("PE 1"));
        assert!(told(&[statement(&[0, 7])]).contains("no such PE"));
        assert!(told(&[vec![0; 19]]).contains("cannot be read"));
    }
}
