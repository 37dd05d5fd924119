//! `peerweave run`: starts a program as the PEs of one job, and holds the rendezvous where they meet.
//!
//! Watching the processes is [`crate::launch`]'s work. Invariant: nothing is started before the command line, the program and the rendezvous
//! are known to be good.

mod tag;

use peerweave_bootstrap::Endpoint;

use crate::cli::{RunArgs, default_pes};
use crate::exit;
use crate::launch::{self, Launch, Stdin, program};
use crate::rendezvous::{Meeting, Place};

use tag::Tagger;

/// Runs the command; gives its exit code.
pub fn main(args: &RunArgs) -> u8 {
    match start(args) {
        Ok(code) => code,
        Err((code, message)) => {
            crate::tell(&format!("peerweave run: {message}"));
            code
        }
    }
}

fn start(args: &RunArgs) -> Result<u8, (u8, String)> {
    refuse_inside_a_job("run")?;
    let n_local = args.n.unwrap_or_else(default_pes);
    let place = place(args).map_err(|message| (exit::USAGE, message))?;
    let (name, rest) = args.program.split_first().ok_or_else(|| (exit::USAGE, "no program".to_owned()))?;
    let beside = std::env::current_exe().ok().and_then(|this| Some(this.parent()?.to_owned()));
    let program = program::find(name, std::env::var_os("PATH").as_deref(), beside.as_deref())
        .map_err(|error| (error.exit_code(), error.to_string()))?;
    let meeting = Meeting::hold(&place, n_local).map_err(|error| (exit::LAUNCHER, error.to_string()))?;
    let mut env = meeting.env();
    let (host, port) = master(&place).map_err(|error| (exit::LAUNCHER, format!("a free port for MASTER_PORT: {error}")))?;
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
        stdin: if args.node_rank == 0 { Stdin::Pass } else { Stdin::Nothing },
        direct_output: n_local == 1 && !tagged,
    };
    let mut tagger = Tagger::new("peerweave run", tagged.then_some(launch.n_pes), meeting);
    let ending = launch::supervise(&launch, &mut tagger).map_err(|error| (exit::LAUNCHER, error.to_string()))?;
    Ok(ending.exit_code())
}

/// Where the PEs meet, from the command line.
fn place(args: &RunArgs) -> Result<Place, String> {
    if args.node_rank >= args.nnodes {
        return Err(format!("--node-rank is {}, expected less than --nnodes, which is {}", args.node_rank, args.nnodes));
    }
    match (&args.rendezvous, args.nnodes) {
        (None, 1) => Ok(Place::ThisMachine),
        (None, _) => Err("--nnodes needs --rendezvous HOST:PORT, an address of machine 0 that the others reach".to_owned()),
        (Some(address), _) if format!("tcp:{address}").parse::<Endpoint>().is_err() => {
            Err(format!("--rendezvous is {address:?}, expected HOST:PORT, such as 10.0.0.1:29500"))
        }
        (Some(address), n_machines) => Ok(Place::Machines { address: address.clone(), n_machines, machine: args.node_rank }),
    }
}

/// Where programs that use torchrun's variables meet: a port that nothing of ours takes. On one machine one that is free now; on several the one after
/// the rendezvous', since all launchers must find the same.
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

/// A PE that starts a job of its own would hand its identity on to it: two PEs of the same number would come to one rendezvous.
pub(crate) fn refuse_inside_a_job(command: &str) -> Result<(), (u8, String)> {
    match std::env::var_os("PEERWEAVE_PE") {
        None => Ok(()),
        Some(pe) => Err((
            exit::USAGE,
            format!(
                "this process is PE {} of a job already (PEERWEAVE_PE is set); to start another job from inside it: \
                 env -u PEERWEAVE_PE peerweave {command} ...",
                pe.to_string_lossy()
            ),
        )),
    }
}
