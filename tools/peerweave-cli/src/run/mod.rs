//! `peerweave run`: starts a program as the PEs of one job and runs their rendezvous.
//! [`crate::launch`] watches the processes.
//!
//! Invariant: a process is started only after the command line, the program and the rendezvous have
//! been checked.

pub(crate) mod args;
mod tag;

use peerweave_bootstrap::Endpoint;

use crate::launch::rendezvous::{JobRendezvous, Place, refuse_inside_a_job};
use crate::launch::{self, Launch, Stdin, program};
use peerweave_bench::console::exit;
use peerweave_bench::console::output::tell;
use peerweave_bench::console::parse::default_pes;

use args::RunArgs;
use tag::Tagger;

/// Runs `peerweave run` and returns its exit code.
pub fn main(args: &RunArgs) -> u8 {
    match start(args) {
        Ok(code) => code,
        Err((code, message)) => {
            tell(&format!("peerweave run: {message}"));
            code
        }
    }
}

fn start(args: &RunArgs) -> Result<u8, (u8, String)> {
    refuse_inside_a_job("run")?;
    let n_local = args.n.unwrap_or_else(default_pes);
    let place = place(args).map_err(|message| (exit::USAGE, message))?;
    let (name, rest) = args
        .program
        .split_first()
        .ok_or_else(|| (exit::USAGE, "the command line has no program, expected PROGRAM after the options".to_owned()))?;
    let beside = std::env::current_exe().ok().and_then(|this| Some(this.parent()?.to_owned()));
    let program = program::find(name, std::env::var_os("PATH").as_deref(), beside.as_deref())
        .map_err(|error| (error.exit_code(), error.to_string()))?;
    let rendezvous = JobRendezvous::start(&place, n_local).map_err(|error| (exit::LAUNCHER, error.to_string()))?;
    let mut env = rendezvous.env();
    let (host, port) =
        master(&place).map_err(|error| (exit::LAUNCHER, format!("cannot find a free port for MASTER_PORT: {error}")))?;
    env.extend([("MASTER_ADDR".into(), host.into()), ("MASTER_PORT".into(), port.to_string().into())]);
    let tagged = if args.no_tag { false } else { args.tag || n_local * args.nnodes > 1 };
    let launch = Launch {
        program,
        args: rest.to_vec(),
        n_local,
        first_pe: args.node_rank * n_local,
        n_pes: n_local * args.nnodes,
        machine: args.node_rank,
        n_machines: args.nnodes,
        env,
        timeout: args.timeout,
        on_failure: args.on_failure,
        stdin: if args.node_rank == 0 { Stdin::Pass } else { Stdin::Nothing },
        direct_output: n_local == 1 && !tagged,
    };
    let mut tagger = Tagger::new("peerweave run", tagged.then_some(launch.n_pes), rendezvous);
    let ending = launch::supervise(&launch, &mut tagger).map_err(|error| (exit::LAUNCHER, error.to_string()))?;
    Ok(ending.exit_code())
}

/// Returns where the PEs of the job run, as the command line says: on this machine or on several
/// machines.
fn place(args: &RunArgs) -> Result<Place, String> {
    if args.node_rank >= args.nnodes {
        return Err(format!("--node-rank is {}, expected less than {} (--nnodes)", args.node_rank, args.nnodes));
    }
    match (&args.rendezvous, args.nnodes) {
        (None, 1) => Ok(Place::ThisMachine),
        (None, _) => {
            Err("--nnodes requires --rendezvous HOST:PORT, an address of machine 0 that all machines can reach".to_owned())
        }
        (Some(address), _) if format!("tcp:{address}").parse::<Endpoint>().is_err() => {
            Err(format!("--rendezvous is {address:?}, expected HOST:PORT, such as 10.0.0.1:29500"))
        }
        (Some(address), n_machines) => Ok(Place::Machines { address: address.clone(), n_machines, machine: args.node_rank }),
    }
}

/// Returns `MASTER_ADDR` and `MASTER_PORT` for programs that use torchrun's variables. On one
/// machine, the port is free at the time of this call. On several machines, it is the port of the
/// rendezvous plus 1, or minus 1 for port 65535, so that all launchers use the same port.
fn master(place: &Place) -> std::io::Result<(String, u16)> {
    match place {
        Place::ThisMachine => {
            let free = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
            Ok(("127.0.0.1".to_owned(), free.local_addr()?.port()))
        }
        Place::Machines { address, .. } => {
            let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
            let port: u16 = port.parse().unwrap_or_default();
            let host = host.trim_start_matches('[').trim_end_matches(']');
            Ok((host.to_owned(), if port < u16::MAX { port + 1 } else { port - 1 }))
        }
    }
}
