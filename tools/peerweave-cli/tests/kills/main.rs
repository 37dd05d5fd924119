//! A campaign of random deaths, with `peerweave run` and with torchrun's variables. Every PE ends,
//! names the PE that died within two seconds of the death, and leaves nothing behind. In half of
//! the jobs the surviving PEs continue in a smaller world, and compute correct results.
//!
//! | variable | meaning |
//! |---|---|
//! | `PEERWEAVE_KILLS` | number of deaths, default 60 |
//! | `PEERWEAVE_KILLS_SEED` | the seed, which is printed; default: a new seed |
//! | `PEERWEAVE_KILLS_FIRST` | the number of the first death, default 0; the number and the seed of a failed death repeat it |
//! | `PEERWEAVE_KILLS_AT_ONCE` | number of jobs at the same time, default 1 |
//! | `PEERWEAVE_KILLS_TIMES` | number of times that each death is tried, default 1 |
//! | `PEERWEAVE_KILLS_ONLY` | words separated by commas: `run` or `torchrun` selects that launcher, `joins` selects kills while the PE joins, `shrinks` selects deaths after which the other PEs continue in a smaller world; default: all deaths |
//! | `PEERWEAVE_KILLS_COMMAND` | the `peerweave` command to test; default: the command that was built with this test |
//!
//! A copy of this program is a PE if [`job::SEED`] is set.

mod job;
mod pe;
mod table;

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, expected a number")))
}

fn main() -> ExitCode {
    if std::env::var_os(job::SEED).is_some() {
        return pe::main();
    }
    // `cargo test` also passes `--list` and filters for other tests to a program without the
    // standard harness.
    if std::env::args()
        .skip(1)
        .any(|argument| argument == "--list" || (!argument.starts_with('-') && !"kills".contains(&*argument)))
    {
        return ExitCode::SUCCESS;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let (kills, seed) = (setting("PEERWEAVE_KILLS", 60), setting("PEERWEAVE_KILLS_SEED", now % 1_000_000_007));
    let at_once = setting("PEERWEAVE_KILLS_AT_ONCE", 1).max(1);
    println!("{kills} deaths, PEERWEAVE_KILLS_SEED={seed}, {at_once} at a time");
    let (first, times) = (setting("PEERWEAVE_KILLS_FIRST", 0), setting("PEERWEAVE_KILLS_TIMES", 1));
    let only = job::Only::parse(&std::env::var("PEERWEAVE_KILLS_ONLY").unwrap_or_default());
    let wanted = (first..).map(|number| job::Case::new(seed, number)).filter(|case| only.takes(case)).take(kills as usize);
    let cases: Vec<_> = wanted.flat_map(|case| (0..times).map(move |_| case)).collect();
    let (next, table) = (AtomicUsize::new(0), Mutex::new(table::Table::default()));
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(at) else { return };
                    let found = case.run();
                    let mut table = table.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    table.add(case, found);
                    if at % 500 == 499 {
                        println!("{}: {}", at + 1, table.summary());
                    }
                }
            });
        }
    });
    let table = table.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    println!("{table}");
    let (verdict, passed) = if table.is_good() { ("ok", 1) } else { ("FAILED", 0) };
    println!("test result: {verdict}. {passed} passed; {} failed; 0 ignored; 0 measured; 0 filtered out\n", 1 - passed);
    if table.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
