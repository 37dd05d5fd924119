//! Unique ids, and the attributes of an initialization.
//!
//! Invariant: attributes are used only if their version words are those of the emulated version.

use core::ffi::{c_int, c_void};

use super::{id, options};
use crate::abi::structs::{InitArgs, InitAttr, UniqueId, UniqueIdArgs, word};
use crate::abi::version::INIT_LAYOUT_2;
use crate::abi::{Result, invalid};
use crate::call::{self, exports};
use crate::settings;

/// Checks the version words of attributes.
pub(super) fn check_words(attr: &InitAttr) -> Result {
    let layouts: &[c_int] = if settings::get().version >= INIT_LAYOUT_2 { &[1, 2] } else { &[1] };
    let fits = |found: c_int, bytes: usize| layouts.iter().any(|layout| found == word(*layout, bytes));
    if !fits(attr.version, size_of::<InitAttr>()) || !fits(attr.args.version, size_of::<InitArgs>()) {
        return invalid(format!(
            "the version words {} and {} of the attributes are not supported, expected layouts {layouts:?}",
            attr.version, attr.args.version
        ));
    }
    if attr.args.uid.version != word(1, size_of::<UniqueIdArgs>()) {
        return invalid(format!("the version word {} of the id's arguments is not supported", attr.args.uid.version));
    }
    Ok(())
}

exports! {
    fn nvshmemx_get_uniqueid(id: *mut UniqueId) -> c_int {
        call::code(|| {
            if id.is_null() {
                return invalid("the unique id is null");
            }
            options::read();
            let new = id::new_id()?;
            // SAFETY: the caller guarantees that `id` points to room for an id.
            unsafe { id.write(new) };
            Ok(())
        })
    }

    fn nvshmemx_set_attr_uniqueid_args(rank: c_int, ranks: c_int, id: *const UniqueId, attr: *mut InitAttr) -> c_int {
        call::code(|| {
            if id.is_null() || attr.is_null() {
                return invalid("the unique id or the attributes are null");
            }
            // SAFETY: the caller guarantees that `attr` points to attributes.
            let attr = unsafe { &mut *attr };
            attr.args.uid.id = id.cast_mut();
            attr.args.uid.rank = rank;
            attr.args.uid.ranks = ranks;
            Ok(())
        })
    }

    fn nvshmemx_set_attr_mpi_comm_args(communicator: *mut c_void, attr: *mut InitAttr) -> c_int {
        call::code(|| {
            if communicator.is_null() || attr.is_null() {
                return invalid("the communicator or the attributes are null");
            }
            // SAFETY: the caller guarantees that `attr` points to attributes.
            unsafe { (*attr).mpi_comm = communicator };
            Ok(())
        })
    }
}
