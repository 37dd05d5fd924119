//! `peerweave info`: reports which features this machine and this environment support, with a
//! reason for each.
//!
//! Settings alone do not show whether PEs can connect. Therefore the command also starts two PEs
//! that connect to each other.

#[cfg_attr(not(feature = "cuda"), path = "no_cuda.rs")]
mod cuda;
mod environment;
mod libraries;
mod peers;
mod system;
mod trial;

use clap::Args;
use serde::Serialize;

use crate::machine::{Machine, NumaNode};
use environment::{Backend, Launcher, Variable};
use libraries::{Library, Multicast};
use peers::Peers;
use peerweave_bench::console::exit;
use peerweave_bench::console::output::{print_line, tell};
use system::System;
use trial::Trial;

/// The arguments of `peerweave info`.
#[derive(Args, Debug)]
pub struct InfoArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The whole report of `peerweave info`; the fields are its parts.
#[derive(Debug, Serialize)]
struct Info {
    version: &'static str,
    machine: Machine,
    system: System,
    trial: Trial,
    launcher: Launcher,
    backend: Backend,
    libraries: Vec<Library>,
    multicast: Multicast,
    peers: Peers,
    variables: Vec<Variable>,
}

/// Runs `peerweave info` and returns its exit code.
pub fn main(args: &InfoArgs) -> u8 {
    let info = Info {
        version: env!("CARGO_PKG_VERSION"),
        machine: Machine::look(),
        system: System::look(),
        trial: Trial::run(),
        launcher: Launcher::look(),
        backend: Backend::look(),
        libraries: cuda::libraries(),
        multicast: cuda::multicast(),
        peers: cuda::peers(),
        variables: environment::variables(),
    };
    let text = if args.json {
        match serde_json::to_string_pretty(&info) {
            Ok(text) => text,
            Err(error) => {
                tell(&format!("peerweave info: {error}"));
                return exit::LAUNCHER;
            }
        }
    } else {
        text(&info)
    };
    print_line(text.trim_end());
    exit::OK
}

/// Formats the report as text. Each part has a heading. The lines of a part have the form
/// `name  value  (reason)`.
fn text(info: &Info) -> String {
    let mut out = format!("peerweave {}\n", info.version);
    let mut part = |heading: &str, lines: Vec<(String, String)>| {
        out += &format!("\n{heading}\n");
        let width = lines.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        for (name, value) in lines {
            out += format!("  {name:<width$}  {value}").trim_end();
            out.push('\n');
        }
    };
    let Machine { hostname, system, architecture, cpu_model, cpus, cpus_online, memory_bytes, numa, virtualized } = &info.machine;
    let line = |name: &str, value: String| (name.to_owned(), value);
    part(
        "Machine",
        vec![
            line("name", hostname.clone()),
            line("system", format!("{system}, {architecture}")),
            line("processor", format!("{cpu_model}{}", if *virtualized { " (virtual machine)" } else { "" })),
            line("CPUs", format!("{cpus} for this process, {cpus_online} online")),
            line("memory", gib(*memory_bytes)),
            line(
                "NUMA nodes",
                if numa.is_empty() {
                    "unknown".to_owned()
                } else {
                    numa.iter().map(NumaNode::text).collect::<Vec<_>>().join("; ")
                },
            ),
        ],
    );
    part("System", info.system.lines());
    part("Host backend", info.trial.lines());
    part("Launcher", vec![info.launcher.line(), info.backend.line()]);
    let mut libraries: Vec<_> = info.libraries.iter().flat_map(Library::lines).collect();
    libraries.push(line("multicast", info.multicast.text()));
    part("Libraries", libraries);
    part("GPUs", info.peers.lines());
    part("Environment", info.variables.iter().map(|variable| line(&variable.name, variable.to_string())).collect());
    out
}

/// Formats a number of bytes in GiB, or in MiB if it is less than 1 GiB. Returns `unknown` for 0.
fn gib(bytes: u64) -> String {
    match bytes {
        0 => "unknown".to_owned(),
        bytes if bytes >= 1 << 30 => format!("{:.1} GiB", bytes as f64 / f64::from(1u32 << 30)),
        bytes => format!("{:.1} MiB", bytes as f64 / f64::from(1u32 << 20)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_formatted_with_a_unit() {
        assert_eq!([gib(0), gib(3 << 29), gib(3 << 19)], ["unknown", "1.5 GiB", "1.5 MiB"]);
    }
}
