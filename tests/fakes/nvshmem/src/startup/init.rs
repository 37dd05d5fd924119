//! Initialization and finalization.
//!
//! Invariant: a job ends when it was finalized as often as it was initialized.

use core::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::attributes::check_words;
use super::begin::{begin, end};
use super::connect::bootstrap;
use super::options;
use crate::abi::structs::InitAttr;
use crate::abi::{fail, invalid};
use crate::call::{self, complain, exports, undefined};
use crate::job::live;
use crate::job::state::{State, peek, set_state, state};
use crate::settings;

exports! {
    fn nvshmemx_hostlib_init_attr(flags: u32, attr: *mut InitAttr) -> c_int {
        call::code(|| {
            if attr.is_null() {
                return invalid("the attributes are null");
            }
            // SAFETY: the caller guarantees that `attr` points to attributes.
            let attr = unsafe { &*attr };
            if settings::get().any_rule {
                // This process is not a PE yet, so the rules of the PE that it will become apply.
                if let Some(code) = call::rules("nvshmemx_hostlib_init_attr", Some(attr.args.uid.rank)) {
                    return fail(code, "an injected fault");
                }
                call::take_effect().suffer();
            }
            check_words(attr)?;
            if let State::Live(_, times) = &mut *state() {
                *times += 1;
                return Ok(());
            }
            if let State::Bootstrapped(..) = &*state() {
                undefined("nvshmemx_hostlib_init_attr was called after a failed start; PEs that had connected cannot start again");
            }
            options::read();
            let met = bootstrap(flags, attr)?;
            let begun = begin(attr, met);
            let (_, pe, ranks) = met;
            set_state(match begun {
                Ok(world) => State::Live(Arc::new(world), 1),
                // Like NVSHMEM, this prints the failure, and returns success.
                Err(failure) => {
                    complain(&format!("{}, continuing", failure.text));
                    State::Bootstrapped(pe, ranks)
                }
            });
            Ok(())
        })
    }

    fn nvshmemx_hostlib_finalize() {
        let world = live();
        call::take_effect().suffer();
        if let State::Live(_, times) = &mut *state() {
            *times -= 1;
            if *times > 0 {
                return;
            }
        }
        call::or_abort(end(&world));
        set_state(State::Finalized);
    }

    fn nvshmemx_init_status() -> c_int {
        match &*state() {
            State::Live(world, _) if world.shares_gpu => 3,
            State::Live(..) => 2,
            State::Bootstrapped(..) => 1,
            State::Idle | State::Finalized => 0,
        }
    }

    fn nvshmem_global_exit(status: c_int) {
        if let Some(world) = peek() {
            complain(&format!("PE {} ends all PEs with status {status}", world.pe));
            world.control.exit.store(status + 1, Ordering::Release);
        }
        std::process::exit(status);
    }

    fn nvshmem_my_pe() -> c_int {
        if let State::Bootstrapped(pe, _) = &*state() {
            return *pe;
        }
        live().pe
    }

    fn nvshmem_n_pes() -> c_int {
        if let State::Bootstrapped(_, ranks) = &*state() {
            return *ranks;
        }
        live().ranks
    }
}
