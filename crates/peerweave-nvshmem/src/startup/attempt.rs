//! An attempt to start NVSHMEM. A process has at most one attempt at a time.

use std::sync::{Arc, PoisonError, TryLockError};
use std::time::Instant;

use peerweave_bootstrap::Rendezvous;
use peerweave_driver::{CudaContext, bind_if_needed};
use peerweave_types::Pe;

use super::ready::{GATE, Ready, can_still_start, no_answer, number_of};
use super::unique_id::UniqueId;
use crate::comm::Parts;
use crate::comm::entry::Entry;
use crate::comm::gate::Sent;
use crate::context::{Arguments, Context, LIFE, ProcessState};
use crate::error::{DeadState, MisuseKind, NvshmemError, PreflightError};
use crate::library::{Nvshmem, Settings, Status};
use crate::sys::{self, nvshmemx_init_attr_t};

/// The kind of bootstrap and its arguments.
pub(super) enum Bootstrapping {
    /// A start by an id: the id, the number of this PE, and the number of PEs.
    Id(UniqueId, u32, u32),
    /// A start by MPI. The field is the address of the communicator. The address is stored as a
    /// number, so that it can be sent to another thread.
    Mpi(usize),
    /// A start by a launcher, which has started the processes. The settings select the service by
    /// which the PEs connect.
    Launcher,
}

/// An initialisation in progress. Dropping this value sets the [`ProcessState`]. After a success,
/// the new state contains the running context. After a failure inside NVSHMEM, the new state
/// contains the reason why NVSHMEM cannot be started again. If NVSHMEM was not called, the new
/// state is the state before this initialisation.
pub(super) struct Start {
    call: &'static str,
    outcome: Option<ProcessState>,
}

pub(super) enum Begun {
    /// NVSHMEM already runs with the same arguments. The field is a new handle to its context.
    Running(Context),
    Start(Start),
    /// This process cannot start NVSHMEM. Other PEs may be waiting for this PE at the rendezvous,
    /// so the error must be sent to these PEs.
    Refused(NvshmemError),
}

impl Start {
    /// Begins an initialisation. If NVSHMEM already runs with equal arguments, returns
    /// [`Begun::Running`]. If this process cannot start NVSHMEM, returns the reason, as
    /// [`Begun::Refused`] or as an error. The caller must send only the reason in
    /// [`Begun::Refused`] to the other PEs.
    ///
    /// # Errors
    /// Returns the reason as an error, and not as [`Begun::Refused`], in two cases: in a forked
    /// child, and if NVSHMEM is starting, running or ending in this process by the same bootstrap,
    /// with the same id, communicator or rendezvous.
    pub(super) fn begin(call: &'static str, arguments: &Arguments) -> Result<Begun, NvshmemError> {
        // In a forked child, the lock may be held by a thread that exists only in the parent.
        let forked = Nvshmem::is_forked();
        let mut life = match LIFE.try_lock() {
            Ok(life) => life,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) if !forked => LIFE.lock().unwrap_or_else(PoisonError::into_inner),
            Err(TryLockError::WouldBlock) => return Err(busy(call, STARTING)),
        };
        let (met, refused) = match &*life {
            ProcessState::Idle => match can_still_start(call) {
                Ok(()) => {
                    *life = ProcessState::Starting(arguments.meeting());
                    return Ok(Begun::Start(Self { call, outcome: Some(ProcessState::Idle) }));
                }
                Err(gave_up) => (None, gave_up),
            },
            ProcessState::Starting(met) => (Some(*met), busy(call, STARTING)),
            ProcessState::Ending(running) => (Some(running.arguments.meeting()), busy(call, ENDING)),
            ProcessState::Live(running) => {
                match running.check_usable(call).and_then(|()| same(call, &running.arguments, arguments)) {
                    Ok(()) => return Ok(Begun::Running(Context::handle(running))),
                    Err(other) => (Some(running.arguments.meeting()), other),
                }
            }
            ProcessState::Over(state) => (None, NvshmemError::Dead { call, state: state.clone() }),
        };
        if forked || met == Some(arguments.meeting()) { Err(refused) } else { Ok(Begun::Refused(refused)) }
    }

    pub(super) fn run(
        mut self,
        Ready { nvshmem, worker, stream, side }: Ready,
        inside: Sent,
        bootstrap: Bootstrapping,
        device: &Arc<CudaContext>,
        arguments: Arguments,
        world: Option<&Arc<Rendezvous>>,
    ) -> Result<Context, NvshmemError> {
        const FUNCTION: &str = "nvshmemx_hostlib_init_attr";
        let call = self.call;
        nvshmem.not_forked(call)?;
        let began = Instant::now();
        let life = if let Bootstrapping::Id(id, ..) = &bootstrap { number_of(id) } else { 0 };
        if let Some(world) = world {
            // If this PE returns here, the other PEs report it as missing when they time out.
            world.put(&began_key(life, world.pe()), b"began").map_err(NvshmemError::bootstrap(call))?;
        }
        let environment = arguments.settings.apply();
        // If NVSHMEM fails from here on, it cannot be started again in this process.
        self.outcome = Some(ProcessState::Over(DeadState::InitFailed));
        let (context, ordinal) = (Arc::clone(device), device.ordinal());
        let limit = arguments.settings.deadline_set();
        let answer = worker.run(inside, limit, move || -> Result<_, NvshmemError> {
            bind_if_needed(&context)?;
            let place = call_init(nvshmem, &bootstrap, ordinal)?;
            match nvshmem.status()? {
                Status::Initialized | Status::FullSharing => Ok(place),
                // If PEs share a GPU without MPS, half of NVSHMEM's calls end the process, so
                // NVSHMEM is finalised now.
                Status::LimitedSharing => {
                    let _ = nvshmem.code("nvshmemx_hostlib_finalize", |api| {
                        // SAFETY: NVSHMEM was just initialised and is not used. All PEs see the
                        // same status and call.
                        unsafe { api.nvshmemx_hostlib_finalize() }
                    });
                    Err(PreflightError::NotAlone { pe: Pe::new(place.0), device: ordinal }.into())
                }
                // NVSHMEM returns success even if only the connection of the PEs succeeded. Its
                // next call would try to initialise on this PE alone, and end the process.
                status => {
                    let detail = format!(
                        "NVSHMEM failed after the PEs were connected ({status:?}); set NVSHMEM_DEBUG=INFO to print the reason"
                    );
                    Err(nvshmem.failure(FUNCTION, None, detail))
                }
            }
        });
        let result = match answer {
            Ok((result, _inside)) => {
                environment.restore();
                result
            }
            Err(error) => {
                environment.leave();
                self.outcome = Some(ProcessState::Over(DeadState::Stuck { inside: FUNCTION }));
                let world = world.map(|world| (&**world, missing(world, life)));
                return Err(no_answer(call, FUNCTION, error, world));
            }
        };
        let (pe, n_pes) = result?;
        if let Some(asked) = arguments.place.filter(|asked| *asked != (pe, n_pes)) {
            let detail = format!("NVSHMEM started PE {pe} of {n_pes}, expected PE {} of {}", asked.0, asked.1);
            return Err(nvshmem.failure(FUNCTION, None, detail));
        }
        tracing::debug!(pe, n_pes, took = ?began.elapsed(), version = %nvshmem.version(), "NVSHMEM started");
        let parts = Parts {
            nvshmem,
            context: Arc::clone(device),
            stream,
            side,
            pe: Pe::new(pe),
            n_pes,
            deadline: arguments.settings.deadline_set(),
            world: world.map(Arc::clone),
            life,
            entry: Entry::new(Arc::clone(&GATE), worker),
        };
        let context = Context::adopt(parts, arguments);
        self.outcome = Some(ProcessState::Live(Arc::clone(&context.running)));
        drop(self);
        Ok(context)
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        if let Some(outcome) = self.outcome.take() {
            *LIFE.lock().unwrap_or_else(PoisonError::into_inner) = outcome;
        }
    }
}

const STARTING: &str = "another thread is starting NVSHMEM; a process can run only one NVSHMEM";
const ENDING: &str = "another thread is finalising NVSHMEM; a process can run only one NVSHMEM";

fn busy(call: &'static str, why: &'static str) -> NvshmemError {
    NvshmemError::misuse(call, MisuseKind::Context { why })
}

/// Checks that a new initialisation asks for the same arguments as the running one. Otherwise
/// returns [`MisuseKind::AlreadyInitialized`], which names the first argument that differs.
fn same(call: &'static str, running: &Arguments, asked: &Arguments) -> Result<(), NvshmemError> {
    let differ = |what, found: String, asked: String| {
        Err(NvshmemError::misuse(call, MisuseKind::AlreadyInitialized { what, found, asked }))
    };
    let place = |place: Option<(u32, u32)>| place.map_or("none".to_owned(), |(pe, n_pes)| format!("PE {pe} of {n_pes}"));
    if running.bootstrap != asked.bootstrap {
        return differ("the bootstrap", running.bootstrap.to_owned(), asked.bootstrap.to_owned());
    }
    if running.place != asked.place {
        return differ("the position", place(running.place), place(asked.place));
    }
    if running.identity != asked.identity {
        let what = match running.bootstrap {
            "an id" => "the id",
            "MPI" => "the communicator",
            _ => "the rendezvous",
        };
        let short = |number: u64| format!("#{:08x}", number as u32);
        return differ(what, short(running.identity), short(asked.identity));
    }
    if running.device != asked.device {
        return differ("the device", running.device.to_string(), asked.device.to_string());
    }
    if running.settings != asked.settings {
        let text = |settings: &Settings| {
            let variables = settings.variables().map(|(name, value)| format!("{name}={value}, "));
            format!("{}a deadline of {:?}", variables.collect::<String>(), settings.deadline_set())
        };
        return differ("the settings", text(&running.settings), text(&asked.settings));
    }
    Ok(())
}

/// Calls NVSHMEM's initialisation. Returns the number of this PE and the number of PEs.
fn call_init(nvshmem: Nvshmem, bootstrap: &Bootstrapping, device: usize) -> Result<(u32, u32), NvshmemError> {
    const FUNCTION: &str = "nvshmemx_hostlib_init_attr";
    let mut attr = nvshmemx_init_attr_t::unset(nvshmem.version());
    if nvshmem.version().at_least(sys::INIT_LAYOUT_2) {
        attr.args.cuda_device_id = device as i32;
    }
    // The id must stay at its address until the initialisation has returned.
    let mut raw_id;
    let flags = match bootstrap {
        Bootstrapping::Id(id, pe, n_pes) => {
            raw_id = id.to_raw();
            attr.args.uid_args.id = &raw mut raw_id;
            attr.args.uid_args.myrank = *pe as i32;
            attr.args.uid_args.nranks = *n_pes as i32;
            sys::NVSHMEMX_INIT_WITH_UNIQUEID
        }
        Bootstrapping::Mpi(communicator) => {
            attr.mpi_comm = std::ptr::with_exposed_provenance_mut(*communicator);
            sys::NVSHMEMX_INIT_WITH_MPI_COMM
        }
        Bootstrapping::Launcher => 0,
    };
    // SAFETY: the struct has the layout of this library's version. The struct and the id live until
    // the call has returned. The device's context is current.
    let code = nvshmem.code(FUNCTION, |api| unsafe { api.nvshmemx_hostlib_init_attr(flags, &raw mut attr) })?;
    nvshmem.check(FUNCTION, code)?;
    // SAFETY: NVSHMEM is initialised.
    let (pe, n_pes) = nvshmem.code("nvshmem_my_pe", |api| unsafe { Ok((api.nvshmem_my_pe()?, api.nvshmem_n_pes()?)) })?;
    match (u32::try_from(pe), u32::try_from(n_pes)) {
        (Ok(pe), Ok(n_pes)) if pe < n_pes => Ok((pe, n_pes)),
        _ => Err(nvshmem.failure(
            "nvshmem_my_pe",
            None,
            format!("NVSHMEM reported invalid numbers: this process is PE {pe} of {n_pes}"),
        )),
    }
}

fn began_key(life: u64, pe: Pe) -> String {
    format!("peerweave-nvshmem/{life:016x}/began/{}", pe.get())
}

/// Returns the PEs that have not begun to start NVSHMEM. A PE that begins stores a value at the
/// rendezvous, under its key ([`began_key`]). This function looks up the keys of all PEs. `life` is
/// a number that identifies this start. The number is computed from the id by which the PEs
/// connect.
fn missing(world: &Rendezvous, life: u64) -> Vec<Pe> {
    let pes = (0..world.n_pes()).map(Pe::new);
    pes.filter(|pe| matches!(world.try_get(&began_key(life, *pe)), Ok(None))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_init_error_names_the_argument_that_differs() {
        let running = Arguments {
            bootstrap: "an id",
            place: Some((0, 2)),
            identity: 7,
            device: 0,
            settings: Settings::default().max_teams(8),
        };
        let differs = |change: fn(&mut Arguments)| {
            let mut asked = running.clone();
            change(&mut asked);
            same("test", &running, &asked).expect_err("the arguments differ").to_string()
        };
        assert!(differs(|asked| asked.device = 1).contains("the device 0, expected 1"));
        assert!(differs(|asked| asked.identity = 8).contains("the id #00000007, expected #00000008"));
        assert!(differs(|asked| asked.place = Some((1, 2))).contains("the position PE 0 of 2, expected PE 1 of 2"));
        assert!(differs(|asked| asked.settings = Settings::default()).contains("NVSHMEM_MAX_TEAMS=8"));
        assert!(same("test", &running, &running.clone()).is_ok());
    }
}
