//! The PEs of a machine put a multicast object together: one creates it, the others import it, each adds its device.
//!
//! Invariant: a failure of any PE, the switch included, is told to all, and then none keeps the object.

use std::sync::Arc;

use peerweave_bootstrap::Rendezvous;
use peerweave_driver::{CudaContext, multicast_switch};
use peerweave_types::Pe;

use super::object::{Building, SharedMulticast, Team};
use super::{MulticastProperties, check_device};
use crate::agree::agree;
use crate::buffer::wrong_value;
use crate::descriptor;
use crate::error::VmmError;
use crate::physical::Exportable;

/// A multicast object of `bytes` with the device of each member, as a complete team.
///
/// # Collective
/// All PEs of the job, with the same length and the same label, which names the object. `members` are the PEs of one machine in ascending order; each
/// PE is in its own list. (PEs of other machines make an object of their own.)
///
/// # Errors
/// [`VmmError::MulticastDisabled`] before any call of the driver, and [`VmmError::Peer`] on the others; as [`Building::create`] and every collective call.
pub fn collective(
    rendezvous: &Rendezvous,
    context: &Arc<CudaContext>,
    members: &[Pe],
    label: &str,
    bytes: usize,
) -> Result<Team, VmmError> {
    const CALL: &str = "multicast::collective";
    let call = format!("{CALL}({label}, {bytes} bytes)");
    let round = |what: &str| format!("peerweave-vmm/multicast/{label}/{what}");
    let properties = MulticastProperties {
        devices: members.len() as u32,
        bytes,
        exportable: if members.len() > 1 { Exportable::FILE_DESCRIPTOR } else { Exportable::NOWHERE },
        flags: 0,
    };
    let me = rendezvous.pe();
    let begin = || {
        multicast_switch()?;
        if !members.is_sorted() || !members.contains(&me) {
            return Err(wrong_value(CALL, "members", format!("{members:?}"), "PEs in ascending order, with this one"));
        }
        check_device(context.ordinal())?;
        if members[0] != me {
            return Ok(None);
        }
        let building = Building::create(context, properties)?;
        let shared = if members.len() > 1 { Some(building.export()?) } else { None };
        Ok(Some((building, shared)))
    };
    let begun = begin();
    agree(rendezvous, &round("created"), &call, begun.as_ref().map(|_| Vec::new()).map_err(Clone::clone))?;
    let added = match begun? {
        Some((building, None)) => Ok(building),
        Some((building, Some(SharedMulticast::FileDescriptor { fd, .. }))) => {
            descriptor::share(rendezvous, members, Some(fd))?;
            Ok(building)
        }
        Some((_, Some(SharedMulticast::Fabric { .. }))) => unreachable!("a descriptor was asked for"),
        None => {
            let fd = descriptor::share(rendezvous, members, None)?;
            // SAFETY: the first member made the same call and exported its multicast object with these properties.
            unsafe { Building::import(context, SharedMulticast::FileDescriptor { fd, properties }) }
        }
    };
    let added = added.and_then(|mut building| building.add_device(context).map(|()| building));
    agree(rendezvous, &round("added"), &call, added.as_ref().map(|_| Vec::new()).map_err(Clone::clone))?;
    Ok(added?.into_team())
}
