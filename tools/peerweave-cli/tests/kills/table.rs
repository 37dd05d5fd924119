//! What all deaths of a campaign showed.

use std::fmt;
use std::time::Duration;

use crate::job::{Case, Found, Launcher, SOON};

#[derive(Debug, Default)]
struct Row {
    deaths: usize,
    nobody_died: usize,
    hangs: usize,
    leftovers: usize,
    wrong_names: usize,
    others: usize,
    died_unknown: usize,
    known_after: Vec<Duration>,
}

/// Counts by launcher, and everything that was wrong.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: [Row; 2],
}

impl Table {
    pub(crate) fn add(&mut self, case: &Case, found: Found) {
        for wrong in found.hangs.iter().chain(&found.leftovers).chain(&found.wrong_names).chain(&found.others) {
            println!("wrong: {} of seed {}: {wrong}", case.number, case.seed);
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
        if !found.died_unknown {
            row.known_after.extend(found.known_after);
        }
    }

    /// Whether nothing was wrong, and 99.9 % were known soon.
    pub(crate) fn is_good(&self) -> bool {
        self.rows.iter().all(|row| {
            let late = row.known_after.iter().filter(|&&after| after >= SOON).count();
            row.hangs + row.leftovers + row.wrong_names + row.others == 0 && late * 1000 <= row.known_after.len()
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
        for (name, row) in ["peerweave run", "torchrun's variables"].iter().zip(&self.rows) {
            let mut known = row.known_after.clone();
            known.sort_unstable();
            let at = |permille: usize| known.get((known.len() * permille / 1000).min(known.len().saturating_sub(1))).copied();
            let soon = known.iter().filter(|&&after| after < SOON).count();
            writeln!(
                f,
                "{name}: {} deaths ({} more PEs had ended before), {} hangs, {} leftovers, {} wrong names, {} other failures",
                row.deaths, row.nobody_died, row.hangs, row.leftovers, row.wrong_names, row.others
            )?;
            writeln!(
                f,
                "  known to {soon} of {} PEs within {SOON:?}; median {:?}, 99 % {:?}, 99.9 % {:?}, all {:?}; {} died before anybody could know them",
                known.len(),
                at(500).unwrap_or_default(),
                at(990).unwrap_or_default(),
                at(999).unwrap_or_default(),
                at(1000).unwrap_or_default(),
                row.died_unknown
            )?;
        }
        Ok(())
    }
}
