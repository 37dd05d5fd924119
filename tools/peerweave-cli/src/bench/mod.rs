//! `peerweave bench`: measures an operation and checks every element of the results.
//!
//! The command starts its PEs through [`crate::launch`], as `peerweave run` does, and reads their
//! measurements from their standard output. Command and PEs compute the same plan of measurements,
//! by [`peerweave_bench::workload`].
//!
//! ```text
//!   report.rs    combines the records of all PEs
//!   table.rs     the result as text
//!   json.rs      the result as JSON
//!   plot.rs      the result as SVG
//!   compare.rs   the result of a comparison of libraries
//!   torch.rs     runs PyTorch as a library of a comparison, through torch.py
//! ```

pub mod compare;
pub mod json;
pub mod plot;
pub mod report;
pub mod table;
mod torch;

use std::io::IsTerminal;
use std::time::SystemTime;

use indicatif::{ProgressBar, ProgressStyle};

use crate::launch::rendezvous::{JobRendezvous, Place, refuse_inside_a_job};
use crate::launch::{self, Launch, Observer, OnFailure, Output, Source, Stdin, Target};
use crate::machine::Machine;
use peerweave_bench::console::exit;
use peerweave_bench::console::output::{check_writable, print_line, tell, write_file};
use peerweave_bench::cuda;
use peerweave_bench::workload::args::{BackendName, BenchArgs, Contender};
use peerweave_bench::workload::config::Config;
use peerweave_bench::workload::record::{Record, monotonic_ns};

use compare::Comparison;
use json::Circumstances;
use report::{Collector, News};

/// Runs `peerweave bench` and returns its exit code.
pub fn main(args: &BenchArgs) -> u8 {
    match start(args) {
        Ok(code) => code,
        Err((code, message)) => {
            tell(&format!("peerweave bench: {message}"));
            code
        }
    }
}

fn rendezvous_of(config: &Config) -> Result<JobRendezvous, (u8, String)> {
    let processes = if config.threads { 1 } else { config.n_pes };
    JobRendezvous::start(&Place::ThisMachine, processes).map_err(|error| (exit::LAUNCHER, error.to_string()))
}

/// Returns the description of the processes that the launcher must start for a measurement.
fn launch_of(config: &Config, args: &BenchArgs, rendezvous: &JobRendezvous) -> Result<Launch, (u8, String)> {
    let launcher = |error: &dyn std::fmt::Display| (exit::LAUNCHER, error.to_string());
    let program = std::env::current_exe().map_err(|error| launcher(&error))?;
    let configuration = serde_json::to_string(config).map_err(|error| launcher(&error))?;
    let processes = if config.threads { 1 } else { config.n_pes };
    let mut env = rendezvous.env();
    // PEERWEAVE_BACKEND of this command's environment is for the user's programs; --backend chooses
    // the backend to measure.
    let backend = if config.backend == BackendName::Cuda { "cuda" } else { "host" };
    env.push((peerweave::environment::names::BACKEND.into(), backend.into()));
    Ok(Launch {
        program,
        args: vec!["bench-pe".into(), configuration.into()],
        n_local: processes,
        first_pe: 0,
        n_pes: processes,
        machine: 0,
        n_machines: 1,
        env,
        timeout: args.timeout,
        on_failure: OnFailure::Abort,
        stdin: Stdin::Nothing,
        direct_output: false,
    })
}

/// Checks the options and returns the configuration of the measurement, or an exit code and a
/// message. Prints a note if the PEs share a GPU.
fn config_of(args: &BenchArgs) -> Result<Config, (u8, String)> {
    refuse_inside_a_job("bench")?;
    let config = Config::from_args(args).map_err(|message| (exit::USAGE, message))?;
    if !config.compare.is_empty() {
        cuda::check_methods(&config).map_err(|message| (exit::USAGE, message))?;
    }
    if let Some(note) = enough_devices(&config).map_err(|message| (exit::USAGE, message))? {
        tell(&format!("peerweave bench: {note}"));
    }
    Ok(config)
}

/// Runs a comparison of libraries, prints its lines, and returns the result. If a PE fails, the
/// outer result is `Ok` and the inner result is the exit code of the job, as `Err`.
///
/// # Errors
/// The exit code and a message if the comparison could not be started.
#[cfg(feature = "cuda")]
pub(crate) fn run_comparison(args: &BenchArgs) -> Result<Result<Comparison, u8>, (u8, String)> {
    let config = config_of(args)?;
    let rendezvous = rendezvous_of(&config)?;
    let launch = launch_of(&config, args, &rendezvous)?;
    supervised(&launch, &config, rendezvous)
}

/// Runs the PEs of a comparison and, if PyTorch is a contender, PyTorch afterwards. Returns the
/// comparison. If a PE fails, the outer result is `Ok` and the inner result is the exit code of the
/// job, as `Err`.
///
/// # Errors
/// The exit code and a message if the PEs could not be started or watched.
fn supervised(launch: &Launch, config: &Config, rendezvous: JobRendezvous) -> Result<Result<Comparison, u8>, (u8, String)> {
    let has_torch = config.compare.contains(&Contender::Torch);
    let mut reporter = compare::Reporter { rendezvous, comparison: Comparison::new(config), is_printed: !has_torch };
    let ending = launch::supervise(launch, &mut reporter).map_err(|error| (exit::LAUNCHER, error.to_string()))?;
    let code = ending.exit_code();
    let mut comparison = reporter.comparison;
    if code == exit::OK && has_torch {
        // PyTorch runs in separate processes, so it cannot alternate with the other contenders.
        let (contenders, records) = torch::measure(config, launch.timeout);
        comparison.add(contenders, &records);
        comparison.header().iter().for_each(|line| print_line(line));
        for line in comparison.lines() {
            comparison.notes(line.row).for_each(|note| print_line(&format!("# {note}")));
            print_line(&comparison.text(line));
        }
    }
    Ok(if code == exit::OK { Ok(comparison) } else { Err(code) })
}

fn start(args: &BenchArgs) -> Result<u8, (u8, String)> {
    let started_at_ns = monotonic_ns();
    let config = config_of(args)?;
    let launcher = |error: &dyn std::fmt::Display| (exit::LAUNCHER, error.to_string());
    // A file that cannot be written is reported before the measurement instead of after it.
    args.json.iter().chain(&args.plot).try_for_each(|path| check_writable(path))?;
    let start_time = now();
    let machine = Machine::look();
    let rendezvous = rendezvous_of(&config)?;
    let launch = launch_of(&config, args, &rendezvous)?;
    if !config.compare.is_empty() {
        return compared(&launch, &config, args, rendezvous, &machine, &start_time);
    }
    let mut reporter = Reporter::new(&config, args, rendezvous, machine.hostname.clone());
    let ending = launch::supervise(&launch, &mut reporter).map_err(|error| launcher(&error))?;
    reporter.bar.finish_and_clear();
    let collector = reporter.collector;
    if ending.exit_code() != exit::OK {
        return Ok(ending.exit_code());
    }
    table::footer(&collector, &config).iter().for_each(|line| print_line(line));
    let first_barrier_ms = collector.ready().iter().map(|ready| ready.passed_at_ns).max();
    let around = Circumstances {
        config: &config,
        args,
        start_time,
        end_time: now(),
        machine: &machine,
        first_barrier_ms: first_barrier_ms.map(|at| at.saturating_sub(started_at_ns) as f64 / 1e6),
    };
    if let Some(path) = &args.json {
        let document = json::document(&collector, &around, std::env::vars_os());
        let text = serde_json::to_string_pretty(&document).map_err(|error| launcher(&error))?;
        write_file(path, &(text + "\n"))?;
    }
    if let Some(path) = &args.plot {
        let subtitle = subtitle(&config, &machine, &collector);
        write_file(path, &plot::svg(collector.rows(), &config, &subtitle).map_err(|error| launcher(&error))?)?;
    }
    Ok(if collector.wrong() > 0 { exit::WRONG_VALUES } else { exit::OK })
}

/// Runs a comparison, prints its footer, and writes the JSON and the plot if the user asked for
/// them. Returns the exit code.
fn compared(
    launch: &Launch,
    config: &Config,
    args: &BenchArgs,
    rendezvous: JobRendezvous,
    machine: &Machine,
    start_time: &str,
) -> Result<u8, (u8, String)> {
    let launcher = |error: &dyn std::fmt::Display| (exit::LAUNCHER, error.to_string());
    let comparison = match supervised(launch, config, rendezvous)? {
        Ok(comparison) => comparison,
        Err(code) => return Ok(code),
    };
    comparison.footer().iter().for_each(|line| print_line(line));
    if let Some(path) = &args.json {
        let document = comparison.document(machine, [start_time, &now()]);
        let text = serde_json::to_string_pretty(&document).map_err(|error| launcher(&error))?;
        write_file(path, &(text + "\n"))?;
    }
    if let Some(path) = &args.plot {
        let subtitle = format!("{} · peerweave {}", machine.hostname, env!("CARGO_PKG_VERSION"));
        write_file(path, &comparison.svg(&subtitle, args.limit).map_err(|error| launcher(&error))?)?;
    }
    Ok(if comparison.wrong() > 0 { exit::WRONG_VALUES } else { exit::OK })
}

/// Checks that there is a GPU for each PE. With the backend `cuda`, PEs may share the only GPU of
/// the machine; this function then returns a note. Returns neither an error nor a note if the
/// driver is missing, because the PEs report this.
fn enough_devices(config: &Config) -> Result<Option<String>, String> {
    if config.backend == BackendName::Host {
        return Ok(None);
    }
    match cuda::device_count()? {
        Some(1) if config.backend == BackendName::Cuda && config.n_pes > 1 => {
            Ok(Some(format!("note: {} PEs share 1 CUDA device; switching between the PEs takes most of the time", config.n_pes)))
        }
        Some(count) if count < config.n_pes => Err(format!(
            "-n is {}, expected at most {count} (the number of CUDA devices): each PE needs its own device",
            config.n_pes
        )),
        _ => Ok(None),
    }
}

/// Returns a text that describes the conditions of the measurement, for the subtitle of the plot.
fn subtitle(config: &Config, machine: &Machine, collector: &Collector) -> String {
    let mut words = vec![format!("{}, {} CPUs", machine.cpu_model, machine.cpus)];
    words.extend(collector.ready().first().map(|ready| format!("{} backend", ready.backend)));
    words.push(config.buffers_name().to_owned());
    words.push(format!("calls: {}", config.calls_name()));
    if config.dirty {
        words.push("rewritten inputs".to_owned());
    }
    words.push(format!("peerweave {}", env!("CARGO_PKG_VERSION")));
    words.join(" · ")
}

/// Returns the current time in UTC, in the format of nccl-tests.
pub(crate) fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string().replace('T', " ").replace('Z', "")
}

/// Receives the output of the PEs, in which each PE reports its measurements as JSON records.
/// Prints a line of the table once all records of this line have arrived.
struct Reporter<'a> {
    config: &'a Config,
    args: &'a BenchArgs,
    rendezvous: JobRendezvous,
    host: String,
    collector: Collector,
    bar: ProgressBar,
}

impl<'a> Reporter<'a> {
    fn new(config: &'a Config, args: &'a BenchArgs, rendezvous: JobRendezvous, host: String) -> Self {
        let collector = Collector::new(config.clone());
        let rows = collector.rows_planned() as u64;
        let bar = if std::io::stderr().is_terminal() && rows > 1 {
            let style =
                ProgressStyle::with_template("{bar:40} {pos}/{len} {wide_msg} {eta}").unwrap_or(ProgressStyle::default_bar());
            ProgressBar::new(rows).with_style(style)
        } else {
            ProgressBar::hidden()
        };
        Self { config, args, rendezvous, host, collector, bar }
    }

    fn print(&self, line: &str, output: &mut Output) {
        if self.bar.is_hidden() {
            output.line(Target::Stdout, b"", line.as_bytes());
        } else {
            self.bar.suspend(|| print_line(line));
        }
    }
}

impl Observer for Reporter<'_> {
    fn line(&mut self, pe: usize, source: Source, line: &[u8], output: &mut Output) {
        let record = match source {
            Source::Stdout => serde_json::from_slice::<Record>(line).ok(),
            Source::Stderr => None,
        };
        let Some(record) = record else {
            output.line(Target::Stderr, format!("[{pe}] ").as_bytes(), line);
            return;
        };
        match self.collector.take(record) {
            News::Nothing => {}
            News::AllReady => {
                let lines = table::header(self.config, self.args, self.collector.ready(), &self.host);
                self.print(&lines.join("\n"), output);
            }
            News::Row(row) => {
                let notes: Vec<String> = self.collector.notes().map(|note| format!("# {note}")).collect();
                notes.iter().for_each(|note| self.print(note, output));
                self.print(&table::line(&row), output);
                self.bar.inc(1);
            }
        }
    }

    fn failed(&mut self, pe: usize, why: &str) -> Option<usize> {
        self.rendezvous.report_lost(pe, why)
    }

    fn name(&self) -> &'static str {
        "peerweave bench"
    }
}
