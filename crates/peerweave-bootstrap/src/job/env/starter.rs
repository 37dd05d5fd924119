//! Finds the launcher that set an environment variable of this process. The launcher is found even
//! if shells and wrappers run between the launcher and this process. This module reads `/proc`.
//!
//! Invariant: all processes for which a launcher set a variable find the same launcher. The only
//! exception is a process that has set the variable itself: such a process may find a different
//! ancestor.

use std::fs;

use crate::process::{Process, parent_and_start};

/// Maximum number of ancestor processes that a search examines.
const MAX_GENERATIONS: usize = 64;

/// Finds the nearest ancestor process whose environment lacks the variable `name`. If the variable
/// is in the environment of every ancestor, finds the most distant ancestor instead. Returns the
/// process ID and the start time of the ancestor as text.
pub(super) fn of_variable(name: &str) -> Option<String> {
    let (process, _) = ancestor_without(name)?;
    Some(format!("{} {}", process.pid, process.started))
}

/// Returns the nearest ancestor process that lacks the environment variable `name`. Returns `None`
/// if there is no such ancestor.
pub(crate) fn agent_of_variable(name: &str) -> Option<Process> {
    ancestor_without(name).and_then(|(process, lacks_it)| lacks_it.then_some(process))
}

/// Searches the ancestors of this process, from the parent upwards, for a process that lacks the
/// environment variable `name`. Returns that process and `true`. If every ancestor has the
/// variable, returns the most distant ancestor and `false`. Returns `None` if `/proc` does not
/// describe an ancestor, or if the search does not end within [`MAX_GENERATIONS`] ancestors.
fn ancestor_without(name: &str) -> Option<(Process, bool)> {
    let mut pid = rustix::process::getppid()?.as_raw_nonzero().get();
    for _ in 0..MAX_GENERATIONS {
        let (parent, process) = parent_and_start(pid)?;
        // An unreadable environment belongs to a process of another user, for example a launcher of
        // the system. Such an environment counts as empty.
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let lacks_it = value(&environment, name).is_none();
        if parent <= 1 || lacks_it {
            return Some((process, lacks_it));
        }
        pid = parent;
    }
    None
}

/// Returns the value of a variable in a block of `NAME=value` entries, each terminated by a zero
/// byte.
pub(crate) fn value<'a>(environment: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut entries = environment.split(|&byte| byte == 0);
    entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_variable_is_found_only_by_its_full_name() {
        let environment = b"A=1\0PMI_RANK_MAP=x\0PMI_RANK=0\0";
        assert_eq!((value(environment, "PMI_RANK"), value(environment, "A")), (Some(&b"0"[..]), Some(&b"1"[..])));
        assert!(["PMI", "RANK", "B"].iter().all(|name| value(environment, name).is_none()));
    }

    #[test]
    fn parent_that_lacks_the_variable_is_taken_as_the_launcher() {
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get();
        let starter = of_variable("PEERWEAVE_NOBODY_SETS_THIS").unwrap();
        assert!(starter.starts_with(&format!("{parent} ")), "{starter}");
    }
}
