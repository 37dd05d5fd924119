//! Which process started this one with a variable: a launcher's, even where shells and wrappers stand between.
//!
//! Reads `/proc` and starts nothing. Invariant: processes that were started by one launcher with the same variable get the same answer, unless
//! one of them set the variable itself.

use std::fs;

/// More generations than any chain of wrappers has.
const MAX_GENERATIONS: usize = 64;

/// The nearest ancestor that does not have `name` in its environment, by its number and the moment of its start, which no other process has.
pub(super) fn of_variable(name: &str) -> Option<String> {
    let mut pid = rustix::process::getppid()?.as_raw_nonzero().get();
    for _ in 0..MAX_GENERATIONS {
        let (parent, started) = parent_and_start(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        // What cannot be read is another user's, as the launchers of a system may be.
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if parent <= 1 || !has(&environment, name) {
            return Some(format!("{pid} {started}"));
        }
        pid = parent;
    }
    None
}

/// Whether a block of `NAME=value`, each ended by a zero byte, has `name`.
fn has(environment: &[u8], name: &str) -> bool {
    let is_it = |entry: &[u8]| entry.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='));
    environment.split(|&byte| byte == 0).any(is_it)
}

/// The fourth and the twenty-second field of `/proc/PID/stat`. The second is a name in parentheses, which may hold anything.
fn parent_and_start(stat: &str) -> Option<(i32, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    Some((parent, fields.nth(17)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_and_start_are_read_behind_a_strange_name() {
        let stat = "24251 (a) b (c) S 24250 24251 24251 0 -1 4194304 135 445 0 0 0 0 0 0 20 0 1 0 987654 2527232 135";
        assert_eq!(parent_and_start(stat), Some((24250, 987654)));
        assert_eq!(parent_and_start("24251 (sh) S"), None);
    }

    #[test]
    fn variable_is_found_by_its_whole_name() {
        let environment = b"A=1\0PMI_RANK_MAP=x\0PMI_RANK=0\0";
        assert!(has(environment, "PMI_RANK") && has(environment, "A"));
        assert!(!has(environment, "PMI") && !has(environment, "RANK") && !has(environment, "B"));
    }

    #[test]
    fn starter_of_an_unknown_variable_is_the_parent() {
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get();
        let starter = of_variable("PEERWEAVE_NOBODY_SETS_THIS").unwrap();
        assert!(starter.starts_with(&format!("{parent} ")), "{starter}");
    }
}
