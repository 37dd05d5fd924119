//! One death: starts a job in which one PE dies. Checks what the other PEs report, and that the job
//! leaves nothing behind.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use peerweave_tests::data::sample::hash;
use peerweave_tests::run::leftovers::processes;

/// Variable that makes a copy of this program a PE. Its value is the seed of the job.
pub(crate) const SEED: &str = "PEERWEAVE_KILLS_JOB_SEED";
/// Variable with the index of the PE that dies.
pub(crate) const VICTIM: &str = "PEERWEAVE_KILLS_VICTIM";
/// Variable with the kind of death, followed by its time in microseconds or its round.
pub(crate) const DEATH: &str = "PEERWEAVE_KILLS_DEATH";
/// Variable with the number of rounds after which all PEs finalise, or 0.
pub(crate) const ROUNDS: &str = "PEERWEAVE_KILLS_ROUNDS";
/// Variable that is 1 if the surviving PEs continue in a smaller world.
pub(crate) const GOES_ON: &str = "PEERWEAVE_KILLS_GOES_ON";
/// Variable with the directory of the PEs' notes.
pub(crate) const DIRECTORY: &str = "PEERWEAVE_KILLS_DIRECTORY";

/// Variable with the command that starts jobs, if not the command that was built with this test.
const COMMAND: &str = "PEERWEAVE_KILLS_COMMAND";

/// Deadline of every wait of the job. A death ends a wait much earlier. The deadline is long,
/// because a live PE may not be scheduled for seconds on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);
/// Time after which a job counts as hanging. A PE may wait for the whole deadline twice: once while
/// it joins, and once later.
const HANGS: Duration = Duration::from_secs(30);
/// Time within which all PEs must have detected a death.
pub(crate) const SOON: Duration = Duration::from_secs(2);

/// Time from the start of a PE until it has joined, in microseconds, on an idle machine.
const JOINS_US: u64 = 25_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Launcher {
    Run,
    Torchrun,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    /// SIGKILL this many microseconds after the start of the process.
    Kill(u64),
    /// A panic in this round.
    Panic(u64),
    /// `abort` in this round.
    Abort(u64),
    /// The PE returns an error of its own in this round, and drops its world.
    Return(u64),
}

impl Death {
    fn text(self) -> String {
        match self {
            Self::Kill(at) => format!("kill {at}"),
            Self::Panic(at) => format!("panic {at}"),
            Self::Abort(at) => format!("abort {at}"),
            Self::Return(at) => format!("return {at}"),
        }
    }

    pub(crate) fn parse(text: &str) -> Self {
        let (how, at) = text.split_once(' ').expect("a death has two parts");
        let at = at.parse().expect("the second part is a number");
        match how {
            "kill" => Self::Kill(at),
            "panic" => Self::Panic(at),
            "abort" => Self::Abort(at),
            "return" => Self::Return(at),
            other => panic!("unknown death {other:?}, expected kill, panic, abort or return"),
        }
    }

    /// Returns the text and the exit code with which the launcher reports this death.
    fn status(self) -> (&'static str, i32) {
        match self {
            Self::Kill(_) => ("was killed by signal 9", 137),
            Self::Panic(_) => ("exited with status 101", 101),
            Self::Abort(_) => ("was killed by signal 6", 134),
            Self::Return(_) => ("exited with status 7", 7),
        }
    }
}

/// A planned death of one PE of a job, with the settings of the job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) seed: u64,
    pub(crate) number: u64,
    pub(crate) launcher: Launcher,
    n_pes: usize,
    victim: usize,
    death: Death,
    attach: bool,
    backtrace: bool,
    rounds: u64,
    /// Whether the surviving PEs continue in a smaller world.
    goes_on: bool,
}

/// The result of a case.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Whether there was no death, because the victim had already ended.
    pub(crate) nobody_died: bool,
    pub(crate) hangs: Vec<String>,
    pub(crate) leftovers: Vec<String>,
    pub(crate) wrong_names: Vec<String>,
    /// Whether the surviving PEs continued in a smaller world.
    pub(crate) went_on: bool,
    /// Other failures: a PE other than the victim failed, or the job ended unexpectedly.
    pub(crate) others: Vec<String>,
    /// Time from the death until each of the other PEs detected the death.
    pub(crate) known_after: Vec<Duration>,
    /// Whether the victim died before it had connected to the rendezvous. Without `peerweave run`
    /// no other process can detect such a death.
    pub(crate) died_unknown: bool,
}

/// Selects some of the cases of a campaign.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Only {
    launcher: Option<Launcher>,
    joins: bool,
    shrinks: bool,
}

impl Only {
    /// Parses words separated by commas.
    pub(crate) fn parse(text: &str) -> Self {
        let mut only = Self::default();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            match word {
                "run" => only.launcher = Some(Launcher::Run),
                "torchrun" => only.launcher = Some(Launcher::Torchrun),
                "joins" => only.joins = true,
                "shrinks" => only.shrinks = true,
                other => panic!("unknown cases {other:?}, expected run, torchrun, joins or shrinks"),
            }
        }
        only
    }

    pub(crate) fn takes(self, case: &Case) -> bool {
        self.launcher.is_none_or(|launcher| launcher == case.launcher)
            && (!self.joins || matches!(case.death, Death::Kill(0..JOINS_US)))
            && (!self.shrinks || case.goes_on)
    }
}

impl Case {
    pub(crate) fn new(seed: u64, number: u64) -> Self {
        let random = |salt: u64| hash(&[seed, number, salt]);
        let n_pes = 2 + (random(1) % 5) as usize;
        // Half of the kills happen while the victim joins.
        let death = match random(2) % 20 {
            0..=6 => Death::Kill(random(3) % JOINS_US),
            7..=13 => Death::Kill(random(3) % 120_000),
            14..=16 => Death::Panic(random(3) % 60),
            17 => Death::Abort(random(3) % 60),
            _ => Death::Return(random(3) % 60),
        };
        let rounds = if random(7) % 8 == 0 { 1 + random(8) % 30 } else { 0 };
        Self {
            seed,
            number,
            launcher: if number.is_multiple_of(2) { Launcher::Run } else { Launcher::Torchrun },
            n_pes,
            victim: (random(4) % n_pes as u64) as usize,
            death,
            attach: random(5) % 4 > 0,
            backtrace: random(6) % 8 == 0,
            rounds,
            goes_on: rounds == 0 && random(9) % 2 == 0,
        }
    }

    /// Runs the job until it ends.
    pub(crate) fn run(&self) -> Found {
        let directory = tempfile::Builder::new().prefix("peerweave-kills-").tempdir().expect("a temporary directory is created");
        let (notes, files) = (directory.path().join("notes"), directory.path().join("files"));
        std::fs::create_dir(&notes).and_then(|()| std::fs::create_dir(&files)).expect("directories");
        let mut children = match self.launcher {
            Launcher::Run => vec![self.by_run(directory.path())],
            Launcher::Torchrun => (0..self.n_pes).map(|pe| self.by_torchrun(directory.path(), pe)).collect(),
        };
        let mut found = Found::default();
        let end = Instant::now() + HANGS;
        while children.iter_mut().any(|child| child.try_wait().expect("the process can be waited for").is_none()) {
            if Instant::now() >= end {
                found.hangs.push(self.end_all(&mut children, directory.path()));
                break;
            }
            sleep(Duration::from_millis(2));
        }
        let mut left = processes(&directory.path().display().to_string());
        let end = Instant::now() + Duration::from_millis(500);
        while !left.is_empty() && Instant::now() < end {
            sleep(Duration::from_millis(5));
            left = processes(&directory.path().display().to_string());
        }
        found.leftovers.extend(left.iter().map(|pid| format!("process {pid}")));
        found
            .leftovers
            .extend(std::fs::read_dir(&files).into_iter().flatten().flatten().map(|entry| format!("{:?}", entry.path())));
        self.judge(directory.path(), &mut children, &mut found);
        found
    }

    fn common(&self, command: &mut Command, directory: &Path) {
        command
            .env(SEED, hash(&[self.seed, self.number]).to_string())
            .env(VICTIM, self.victim.to_string())
            .env(DEATH, self.death.text())
            .env(ROUNDS, self.rounds.to_string())
            .env(GOES_ON, u8::from(self.goes_on).to_string())
            .env(DIRECTORY, directory)
            .env("TMPDIR", directory.join("files"))
            .env("PEERWEAVE_DEADLINE", DEADLINE.as_secs_f64().to_string())
            .env("PEERWEAVE_CROSS_MEMORY_ATTACH", if self.attach { "on" } else { "off" })
            .env("RUST_BACKTRACE", if self.backtrace { "1" } else { "0" })
            .stdin(Stdio::null())
            .stdout(Stdio::null());
    }

    fn by_run(&self, directory: &Path) -> Child {
        let mut command = Command::new(std::env::var_os(COMMAND).unwrap_or_else(|| env!("CARGO_BIN_EXE_peerweave").into()));
        self.common(&mut command, directory);
        let program = std::env::current_exe().expect("the path of this program is known");
        let on_failure = if self.goes_on { "--on-failure=continue" } else { "--on-failure=abort" };
        command
            .args(["run", "-n", &self.n_pes.to_string(), "--no-tag", on_failure, "--"])
            .arg(program)
            .env_remove("PEERWEAVE_PE");
        command.stderr(File::create(directory.join("stderr")).expect("the file is created")).spawn().expect("the launcher starts")
    }

    fn by_torchrun(&self, directory: &Path, pe: usize) -> Child {
        let mut command = Command::new(std::env::current_exe().expect("the path of this program is known"));
        self.common(&mut command, directory);
        for (name, value) in [("RANK", pe), ("LOCAL_RANK", pe), ("WORLD_SIZE", self.n_pes), ("LOCAL_WORLD_SIZE", self.n_pes)] {
            command.env(name, value.to_string());
        }
        command
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", "29500")
            .env("TORCHELASTIC_RUN_ID", directory)
            .env_remove("PEERWEAVE_PE")
            .stderr(File::create(directory.join(format!("stderr-{pe}"))).expect("the file is created"))
            .spawn()
            .expect("the PE starts")
    }

    /// Ends a job that hangs. Returns the system calls in which its processes waited.
    fn end_all(&self, children: &mut [Child], directory: &Path) -> String {
        let mark = directory.display().to_string();
        let mut text = format!("{self:?}:");
        for pid in processes(&mark) {
            let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
            text +=
                &format!("\n  process {pid} ({}) waits in {}: {}", read("comm").trim(), read("wchan"), read("syscall").trim());
        }
        for pe in 0..self.n_pes {
            let notes = std::fs::read_to_string(directory.join(format!("notes/{pe}"))).unwrap_or_default();
            text += &format!("\n  the notes of PE {pe}: {notes:?}");
        }
        children.iter_mut().for_each(|child| {
            let _ = child.kill();
            let _ = child.wait();
        });
        text
    }

    fn judge(&self, directory: &Path, children: &mut [Child], found: &mut Found) {
        let notes = |pe: usize| std::fs::read_to_string(directory.join(format!("notes/{pe}"))).unwrap_or_default();
        let line = |pe: usize, kind: &str| {
            let text = notes(pe);
            text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' ').map(str::to_owned))
        };
        let Some(died) = line(self.victim, "died") else {
            found.nobody_died = line(self.victim, "fine").is_some();
            if !found.nobody_died {
                found.others.push(format!("{self:?}: the notes of the victim: {:?}", notes(self.victim)));
            }
            return;
        };
        let (died, phase) = died.split_once(' ').expect("the note has a time and a phase");
        let died: u64 = died.parse().expect("the time is a number");
        let mut late = Duration::ZERO;
        for pe in (0..self.n_pes).filter(|&pe| pe != self.victim) {
            if let Some(lost) = line(pe, "lost") {
                let (at, rest) = lost.split_once(' ').expect("the note has a time and names");
                let after = Duration::from_nanos(at.parse::<u64>().expect("the time is a number").saturating_sub(died));
                late = late.max(after);
                found.known_after.push(after);
                if rest.split(' ').next() != Some(&self.victim.to_string()) {
                    found.wrong_names.push(format!("{self:?}: PE {pe} after {after:?}: {rest}"));
                }
            } else if line(pe, "fine").is_none() || self.rounds == 0 {
                // A PE that the launcher ended has no error with the reason; all others must report
                // one.
                found.others.push(format!("{self:?}: the notes of PE {pe}: {:?}", notes(pe)));
            }
        }
        if self.goes_on {
            // A PE that had not joined yet has no world to shrink. The other PEs form the new
            // world.
            let went_on: Vec<String> = (0..self.n_pes).filter_map(|pe| line(pe, "went_on")).collect();
            let joined: Vec<usize> = (0..self.n_pes).filter(|&pe| pe != self.victim && line(pe, "shrinks").is_some()).collect();
            found.went_on = !went_on.is_empty();
            if went_on.len() != joined.len() || went_on.iter().any(|size| *size != joined.len().to_string()) {
                let all: Vec<String> = (0..self.n_pes).map(notes).collect();
                found.others.push(format!("{self:?}: the notes of all PEs: {all:?}"));
            }
        }
        // The death could not be observed: the PE had not connected, and there is no
        // `peerweave run`.
        found.died_unknown = self.launcher == Launcher::Torchrun && phase != "joined" && late > SOON;
        if self.launcher == Launcher::Run && found.hangs.is_empty() {
            let said = std::fs::read_to_string(directory.join("stderr")).unwrap_or_default();
            let mut reports: Vec<&str> = said.lines().filter(|line| line.starts_with("peerweave run: ")).collect();
            if !self.goes_on {
                reports.truncate(1);
            }
            let (words, code) = self.death.status();
            let start = format!("peerweave run: PE {} (process ", self.victim);
            let names = reports.iter().any(|report| report.starts_with(&start) && report.contains(words));
            let ended = children[0].wait().expect("the process can be waited for").code();
            // If no PE succeeds, the code is that of the PE that ended last.
            let expected = if found.went_on { Some(0) } else { Some(code).filter(|_| !self.goes_on) };
            if !names || expected.is_some_and(|code| ended != Some(code)) {
                found.wrong_names.push(format!("{self:?}: the launcher exited with {ended:?} and printed {reports:?}"));
            }
        }
    }
}
