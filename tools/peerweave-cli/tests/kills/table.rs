//! The results of a campaign.

use std::fmt;
use std::time::Duration;

use crate::job::{Case, Found, Launcher, SOON};

/// Number of PEs that may be late in a short campaign.
const LATE: usize = 2;

#[derive(Debug, Default)]
struct Row {
    deaths: usize,
    nobody_died: usize,
    hangs: usize,
    leftovers: usize,
    wrong_names: usize,
    others: usize,
    died_unknown: usize,
    went_on: usize,
    known_after: Vec<Duration>,
}

/// Counts of results for each launcher, and all failures.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: [Row; 2],
    /// For each failed case: number, seed and description of the failure.
    failed: Vec<(u64, u64, String)>,
}

impl Table {
    pub(crate) fn add(&mut self, case: &Case, found: Found) {
        let kinds = [
            ("hang", &found.hangs),
            ("leftover", &found.leftovers),
            ("wrong name", &found.wrong_names),
            ("other failure", &found.others),
        ];
        for (kind, wrong) in kinds.iter().flat_map(|(kind, all)| all.iter().map(move |wrong| (kind, wrong))) {
            println!("{kind}: {} of seed {}: {wrong}", case.number, case.seed);
            self.failed.push((case.number, case.seed, format!("{kind}: {wrong}")));
        }
        if !found.died_unknown && found.known_after.iter().any(|&after| after >= SOON) {
            println!("late: {case:?}: {:?}", found.known_after);
        }
        let row = &mut self.rows[usize::from(case.launcher == Launcher::Torchrun)];
        row.deaths += usize::from(!found.nobody_died);
        row.nobody_died += usize::from(found.nobody_died);
        row.hangs += found.hangs.len();
        row.leftovers += found.leftovers.len();
        row.wrong_names += found.wrong_names.len();
        row.others += found.others.len();
        row.died_unknown += usize::from(found.died_unknown);
        row.went_on += usize::from(found.went_on);
        if !found.died_unknown {
            row.known_after.extend(found.known_after);
        }
    }

    /// Returns whether there was no failure, and 99.9 % of PEs detected the death in time. In a
    /// short campaign, [`LATE`] PEs of each launcher may be late, because the system may suspend
    /// the whole machine for seconds.
    pub(crate) fn is_good(&self) -> bool {
        self.rows.iter().all(|row| {
            let late = row.known_after.iter().filter(|&&after| after >= SOON).count();
            let may_be_late = (row.known_after.len() / 1000).max(LATE);
            row.hangs + row.leftovers + row.wrong_names + row.others == 0 && late <= may_be_late
        })
    }

    pub(crate) fn summary(&self) -> String {
        let sum = |count: fn(&Row) -> usize| self.rows.iter().map(count).sum::<usize>();
        format!(
            "{} deaths, {} hangs, {} leftovers, {} wrong names, {} others",
            sum(|row| row.deaths),
            sum(|row| row.hangs),
            sum(|row| row.leftovers),
            sum(|row| row.wrong_names),
            sum(|row| row.others)
        )
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<21} {:>7} {:>6} {:>10} {:>12} {:>15} {:>10} {:>9} {:>9} {:>9} {:>9}",
            "",
            "deaths",
            "hangs",
            "leftovers",
            "wrong names",
            "other failures",
            "notified",
            "in 2 s",
            "median",
            "99.9 %",
            "slowest"
        )?;
        for (name, row) in ["peerweave run", "torchrun's variables"].iter().zip(&self.rows) {
            let mut known = row.known_after.clone();
            known.sort_unstable();
            let at = |permille: usize| {
                let at = known.get((known.len() * permille / 1000).min(known.len().saturating_sub(1)));
                format!("{:.3} s", at.copied().unwrap_or_default().as_secs_f64())
            };
            let soon = known.iter().filter(|&&after| after < SOON).count();
            writeln!(
                f,
                "{name:<21} {:>7} {:>6} {:>10} {:>12} {:>15} {:>10} {:>7.3} % {:>8} {:>8} {:>8}",
                row.deaths,
                row.hangs,
                row.leftovers,
                row.wrong_names,
                row.others,
                known.len(),
                soon as f64 / known.len().max(1) as f64 * 100.0,
                at(500),
                at(999),
                at(1000)
            )?;
            writeln!(
                f,
                "{:<21} {} more victims had already ended; {} died before any other process could detect them; {} jobs continued",
                "", row.nobody_died, row.died_unknown, row.went_on
            )?;
        }
        for (number, seed, wrong) in &self.failed {
            writeln!(f, "FAILED: PEERWEAVE_KILLS=1 PEERWEAVE_KILLS_FIRST={number} PEERWEAVE_KILLS_SEED={seed}: {wrong}")?;
        }
        Ok(())
    }
}
