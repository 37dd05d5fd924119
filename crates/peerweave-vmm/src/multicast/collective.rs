//! Creates a multicast object on the PEs of a machine together. One PE creates the object, the
//! other PEs import it, and each PE adds its device.
//!
//! Invariants: no object is created before all PEs have reported that they can take part. If a PE
//! fails, all PEs are notified, and no PE keeps the object.

use std::sync::Arc;

use peerweave_bootstrap::Rendezvous;
use peerweave_driver::{CudaContext, multicast_switch};
use peerweave_types::Pe;

use super::object::{Building, MulticastId, SharedMulticast, Team};
use super::{MulticastProperties, check_device};
use crate::agree::{Disagreement, Reader, agree, unreadable};
use crate::error::{Misuse, VmmError};
use crate::memory::buffer::wrong_value;
use crate::memory::descriptor::{self, Descriptor};
use crate::memory::physical::Exportable;
use crate::raw;

const CALL: &str = "multicast::collective";

/// Creates a multicast object of `bytes` bytes, and adds the device of each member. Returns the
/// complete team.
///
/// # Collective
/// All PEs of the job call this function with the same `bytes` and the same `label`, which names
/// the object. `members` contains the PEs of one machine in ascending order, including this PE. All
/// members pass the same list.
///
/// PEs of different machines create separate objects: one object is created for each list of
/// members. Afterwards all PEs of the job call [`Team::bound_with`] together. If multicast is
/// disabled on one PE, no object is created.
///
/// # Errors
/// [`VmmError::MulticastDisabled`] if multicast is disabled on this PE; the driver is then not
/// called, and the other PEs get [`VmmError::Peer`]. [`Misuse::Diverged`] on all PEs if members
/// pass different lists. [`Misuse::Value`] on all PEs if two members have the same device.
/// [`VmmError::Timeout`] if PEs do not arrive by the deadline; the error names these PEs. Also the
/// errors of [`Building::create`].
pub fn collective(
    rendezvous: &Rendezvous,
    context: &Arc<CudaContext>,
    members: &[Pe],
    label: &str,
    bytes: usize,
) -> Result<Team, VmmError> {
    Ok(create_together(rendezvous, context, members, label, bytes)?)
}

/// Implements [`collective`]. Returns [`Disagreement::Known`] if every PE knows that the call
/// failed, and [`Disagreement::Unknown`] otherwise.
pub(crate) fn create_together(
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
    let looked = look(me, context, members).map(|device| statement(members, &device));
    let statements = agree(rendezvous, &round("looked"), &call, looked)?;
    // All PEs have the same statements, and reach the same result.
    check_devices(&call, &statements).map_err(Disagreement::Known)?;
    let begun = begin(me, context, members, properties);
    let id = begun.as_ref().map(|begun| begun.as_ref().map_or(Vec::new(), |(building, _)| building.id().0.to_vec()));
    let ids = agree(rendezvous, &round("created"), &call, id.map_err(Clone::clone))?;
    let id = Reader(&ids[members[0].index()]).bytes().map(MulticastId);
    let id = id.ok_or_else(|| Disagreement::Known(unreadable(&call, members[0])))?;
    let added = match begun.map_err(Disagreement::Known)? {
        Some((building, None)) => Ok(building),
        Some((building, fd)) => descriptor::share(rendezvous, members, fd).map(|_| building),
        // SAFETY: the first member made the same call, with the same members and length. It
        // exported its multicast object with these properties and this id.
        None => descriptor::share(rendezvous, members, None)
            .and_then(|fd| unsafe { Building::import(context, SharedMulticast::FileDescriptor { fd, properties, id }) }),
    };
    // The missing or lost PE will not take part in the next exchange, so that exchange is skipped.
    let added = match added {
        Err(error) if error.is_loss() => return Err(Disagreement::Unknown(error)),
        added => added,
    };
    let added = added.and_then(|mut building| building.add_device(context).map(|()| building));
    agree(rendezvous, &round("added"), &call, added.as_ref().map(|_| Vec::new()).map_err(Clone::clone))?;
    Ok(added.map_err(Disagreement::Known)?.into_team(Some(members.into())))
}

/// A multicast object that the first member has created, and a file descriptor of the object. The
/// other members import the object with the descriptor. The descriptor is `None` if there are no
/// other members.
type Begun = (Building, Option<Descriptor>);

/// Checks that `members` is valid, and that this PE and its device can use multicast objects.
/// Returns the PCI address of the device.
fn look(me: Pe, context: &CudaContext, members: &[Pe]) -> Result<String, VmmError> {
    multicast_switch()?;
    if !members.is_sorted_by(|one, next| one < next) || !members.contains(&me) {
        return Err(wrong_value(
            CALL,
            "members",
            format!("{members:?}"),
            "a list of PEs in ascending order without duplicates, including this PE",
        ));
    }
    check_device(context.ordinal())?;
    raw::pci_address(context.ordinal())
}

fn begin(me: Pe, context: &Arc<CudaContext>, members: &[Pe], properties: MulticastProperties) -> Result<Option<Begun>, VmmError> {
    if members[0] != me {
        return Ok(None);
    }
    let building = Building::create(context, properties)?;
    if members.len() == 1 {
        return Ok(Some((building, None)));
    }
    let SharedMulticast::FileDescriptor { fd, .. } = building.export_file_descriptor()? else {
        unreachable!("bug in peerweave-vmm: the export returned a handle type other than a descriptor")
    };
    // The exchange needs descriptors for the connections and the descriptors in flight. If this
    // process has too few descriptors, this PE would seem to be missing to the other PEs.
    descriptor::check_room(&fd, 2 * members.len() + 2)?;
    Ok(Some((building, Some(fd))))
}

/// Encodes the data that a PE sends to the other PEs: its list of members, and the text `words`,
/// which describes its device or its multicast object.
pub(super) fn statement(members: &[Pe], words: &str) -> Vec<u8> {
    let mut statement = (members.len() as u32).to_le_bytes().to_vec();
    statement.extend(members.iter().flat_map(|pe| pe.get().to_le_bytes()));
    statement.extend(words.as_bytes());
    statement
}

fn read_statement(statement: &[u8]) -> Option<(Vec<Pe>, &str)> {
    let mut reader = Reader(statement);
    let count = u32::from_le_bytes(reader.bytes()?) as usize;
    let (numbers, words) = reader.rest().split_at_checked(count.checked_mul(4)?)?;
    let (numbers, _) = numbers.as_chunks::<4>();
    Some((numbers.iter().map(|number| Pe::new(u32::from_le_bytes(*number))).collect(), str::from_utf8(words).ok()?))
}

/// A PE and the text that this PE sent to the other PEs.
type Said<'a> = (Pe, &'a str);

/// Checks the lists of members that the PEs sent: all PEs in a list must have sent this same list.
/// Calls `check` for every two PEs of a list, with the numbers of the PEs and the texts that they
/// sent. `statements` has one element for each PE of the job, encoded by [`statement`].
fn check_members(
    call: &str,
    statements: &[Vec<u8>],
    check: impl Fn(Said<'_>, Said<'_>) -> Result<(), VmmError>,
) -> Result<(), VmmError> {
    let mut read = Vec::with_capacity(statements.len());
    for (pe, statement) in (0..).map(Pe::new).zip(statements) {
        read.push(read_statement(statement).ok_or_else(|| unreadable(call, pe))?);
    }
    for (one, (members, words)) in (0..).map(Pe::new).zip(&read) {
        for other in members {
            match read.get(other.index()) {
                Some((theirs, their_words)) if theirs == members => {
                    if *other > one {
                        check((one, words), (*other, their_words))?;
                    }
                }
                theirs => {
                    let has = |members: &Vec<Pe>| format!("members {members:?}");
                    let other_has =
                        theirs.map_or("no members, because the job has no such PE".to_owned(), |(theirs, _)| has(theirs));
                    let (call, one_has, other) = (call.to_owned(), has(members), *other);
                    return Err(Misuse::Diverged { call, one, one_has, other, other_has }.into());
                }
            }
        }
    }
    Ok(())
}

/// Checks that no two members have the same device. Otherwise the object would have fewer devices
/// than members, and the driver would wait forever for the missing devices.
fn check_devices(call: &str, statements: &[Vec<u8>]) -> Result<(), VmmError> {
    check_members(call, statements, |(one, device), (other, theirs)| match device == theirs {
        true => Err(wrong_value(CALL, "members", format!("{one} and {other} on device {device}"), "PEs with different devices")),
        false => Ok(()),
    })
}

/// Checks that the PEs of each list of members sent the same description of their multicast object:
/// its id and properties. PEs with different lists may have different objects. Also checks the
/// lists, like [`check_members`].
pub(super) fn check_objects(call: &str, statements: &[Vec<u8>]) -> Result<(), VmmError> {
    check_members(call, statements, |(one, object), (other, theirs)| match object == theirs {
        true => Ok(()),
        false => {
            let (call, one_has, other_has) = (call.to_owned(), object.to_owned(), theirs.to_owned());
            Err(Misuse::Diverged { call, one, one_has, other, other_has }.into())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(members: &[u32], words: &str) -> Vec<u8> {
        super::statement(&members.iter().copied().map(Pe::new).collect::<Vec<_>>(), words)
    }

    fn message_of(statements: &[Vec<u8>]) -> String {
        check_devices("collective", statements).expect_err("the data of the PEs differs").to_string()
    }

    #[test]
    fn pes_of_a_machine_must_pass_the_same_member_list() {
        // Devices of different machines can have the same PCI address.
        let machines = [statement(&[0, 2], "a"), statement(&[1, 3], "a"), statement(&[0, 2], "b"), statement(&[1, 3], "b")];
        assert!(check_devices("collective", &machines).is_ok());
        assert_eq!(
            message_of(&[statement(&[0, 1], "a"), statement(&[0, 1, 2], "b"), statement(&[0, 1, 2], "c")]),
            "collective: the PEs disagree: PE 0 has members [Pe(0), Pe(1)], PE 1 has members [Pe(0), Pe(1), Pe(2)]"
        );
        assert!(message_of(&[statement(&[0, 1], "a"), statement(&[1], "b")]).contains("PE 1"));
        assert!(message_of(&[statement(&[0, 7], "a")]).contains("the job has no such PE"));
        assert!(message_of(&[vec![9, 0, 0, 0, 1]]).contains("sent invalid data"));
        assert!(message_of(&[vec![0; 3]]).contains("sent invalid data"));
    }

    #[test]
    fn multicast_error_names_two_pes_that_share_a_device() {
        let pes = [statement(&[0, 1, 2], "a"), statement(&[0, 1, 2], "b"), statement(&[0, 1, 2], "b")];
        assert_eq!(
            message_of(&pes),
            "multicast::collective: members is PE 1 and PE 2 on device b, expected PEs with different devices"
        );
    }

    #[test]
    fn pes_of_a_group_must_have_the_same_multicast_object() {
        let groups = [statement(&[0, 2], "a"), statement(&[1], "b"), statement(&[0, 2], "a")];
        assert!(check_objects("collective", &groups).is_ok());
        let apart = [statement(&[0, 2], "a"), statement(&[1], "a"), statement(&[0, 2], "b")];
        assert_eq!(
            check_objects("collective", &apart).expect_err("the objects differ").to_string(),
            "collective: the PEs disagree: PE 0 has a, PE 2 has b"
        );
    }
}
