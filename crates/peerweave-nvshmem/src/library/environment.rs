//! Changes the environment of the process safely while other threads read it.
//!
//! `setenv` and `unsetenv` move and free the list that a `getenv` on another thread reads, and C
//! has no lock for the list. This module therefore builds a new list and installs it by one atomic
//! store.
//!
//! Invariant: this module neither changes nor frees an installed list or its strings, so a reader
//! can finish with the list that it loaded. Strings and lists are reused, so repeated changes need
//! no more memory.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsString, c_char};
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

unsafe extern "C" {
    /// The list of the process's variables, each as `NAME=value`, terminated by null. An
    /// `AtomicPtr` has the layout of C's `char **`.
    safe static environ: AtomicPtr<*const c_char>;
}

/// An array of pointers to `NAME=value` strings, terminated by a null pointer, as in C's `environ`.
/// The array and the strings are never freed, because other threads may still read them.
struct List(&'static [*const c_char]);

// SAFETY: the threads share the addresses of strings that are never changed or freed, so no
// synchronisation is needed. The test `c_code_reads_correct_values_while_variables_change` covers
// this.
unsafe impl Send for List {}

/// All arrays that this module has installed as the environment, and their strings. None of these
/// is ever freed, because other threads may still read it. A thread that changes the environment
/// locks [`MADE`] during the change.
struct Made {
    texts: BTreeSet<&'static CStr>,
    lists: Vec<List>,
}

static MADE: Mutex<Made> = Mutex::new(Made { texts: BTreeSet::new(), lists: Vec::new() });

/// Sets variables, and removes variables whose value is `None`. A name or value with a zero byte is
/// ignored.
///
/// Other threads may read the environment during the call, through Rust's standard library or C's
/// `getenv`. Such a thread sees either all changes or no change. A change that another thread makes
/// at the same time may be lost.
pub(crate) fn change(changes: &[(String, Option<OsString>)]) {
    if changes.is_empty() {
        return;
    }
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let before = environ.load(Ordering::Acquire);
        // Reads through the standard library, whose lock excludes other users of the standard
        // library.
        let unchanged = std::env::vars_os().filter(|(name, _)| !changes.iter().any(|(changed, _)| name == changed.as_str()));
        let changed = changes.iter().filter_map(|(name, value)| Some((OsString::from(name), value.clone()?)));
        let after = made.list(unchanged.chain(changed));
        if environ.compare_exchange(before, after, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return;
        }
        // Another thread has installed a list since `before` was loaded.
    }
}

impl Made {
    /// Returns a list of `variables` in C's form, terminated by null. If this module has made an
    /// equal list earlier, returns that list. A list is never freed.
    fn list(&mut self, variables: impl Iterator<Item = (OsString, OsString)>) -> *mut *const c_char {
        let mut list: Vec<*const c_char> = variables.filter_map(|(name, value)| self.text(name, value)).collect();
        list.push(std::ptr::null());
        let known = self.lists.iter().find(|known| known.0 == list.as_slice()).map(|known| known.0);
        let list = known.unwrap_or_else(|| {
            let list: &'static [*const c_char] = list.leak();
            self.lists.push(List(list));
            list
        });
        list.as_ptr().cast_mut()
    }

    fn text(&mut self, name: OsString, value: OsString) -> Option<*const c_char> {
        let bytes = [name.into_vec(), b"=".to_vec(), value.into_vec()].concat();
        let text = CString::new(bytes).ok()?;
        let known = self.texts.get(text.as_c_str()).copied();
        let text = known.unwrap_or_else(|| {
            let text: &'static CStr = Box::leak(text.into_boxed_c_str());
            self.texts.insert(text);
            text
        });
        Some(text.as_ptr())
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Serialises the tests of this module.
    static ALONE: Mutex<()> = Mutex::new(());

    fn alone() -> std::sync::MutexGuard<'static, ()> {
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn through_c(name: &CStr) -> Option<String> {
        // SAFETY: the name ends in a zero byte, and this module never frees a string of the
        // environment.
        let value = unsafe { libc::getenv(name.as_ptr()) };
        // SAFETY: `value` is a C string that is never freed.
        (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
    }

    fn set(name: &str, value: &str) -> (String, Option<OsString>) {
        (name.to_owned(), Some(value.into()))
    }

    fn unset(name: &str) -> (String, Option<OsString>) {
        (name.to_owned(), None)
    }

    /// Returns the entries of a null-terminated list of environment variables, such as C's
    /// `environ`. Each entry is a pointer to a `NAME=value` string.
    fn walk(list: *const *const c_char) -> Vec<*const c_char> {
        // SAFETY: a list of environment variables is terminated by null.
        (0..).map(|index| unsafe { *list.add(index) }).take_while(|text| !text.is_null()).collect()
    }

    #[test]
    fn environment_change_is_visible_to_c_and_rust() {
        let _alone = alone();
        change(&[set("PEERWEAVE_TEST_ONE", "first"), set("PEERWEAVE_TEST_TWO", "")]);
        assert_eq!(through_c(c"PEERWEAVE_TEST_ONE").as_deref(), Some("first"));
        assert_eq!(std::env::var("PEERWEAVE_TEST_TWO").as_deref(), Ok(""));
        change(&[set("PEERWEAVE_TEST_ONE", "second"), unset("PEERWEAVE_TEST_TWO")]);
        assert_eq!(through_c(c"PEERWEAVE_TEST_ONE").as_deref(), Some("second"));
        assert_eq!(through_c(c"PEERWEAVE_TEST_TWO"), None);
        change(&[unset("PEERWEAVE_TEST_ONE")]);
        assert_eq!(std::env::var_os("PEERWEAVE_TEST_ONE"), None);
        assert!(std::env::var_os("PATH").is_some(), "the change removed the variable PATH");
    }

    #[test]
    fn environment_changes_do_not_modify_the_old_environ_array() {
        let _alone = alone();
        change(&[set("PEERWEAVE_TEST_LIST", "0")]);
        let found = environ.load(Ordering::Acquire);
        let before = walk(found);
        for value in ["1", "2", "3"] {
            change(&[set("PEERWEAVE_TEST_LIST", value), set("PEERWEAVE_TEST_OTHER", value)]);
            change(&[unset("PEERWEAVE_TEST_OTHER")]);
        }
        change(&[unset("PEERWEAVE_TEST_LIST")]);
        assert_eq!(walk(found), before);
    }

    #[test]
    fn repeated_environment_changes_use_no_more_memory() {
        let _alone = alone();
        let back_and_forth = || {
            change(&[set("PEERWEAVE_TEST_AGAIN", "there")]);
            change(&[unset("PEERWEAVE_TEST_AGAIN")]);
            let made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
            (made.texts.len(), made.lists.len())
        };
        // Other tests of this process may change the environment at the same time.
        let needs_no_more = || back_and_forth() == back_and_forth();
        assert!(
            (0..1000).any(|_| needs_no_more()),
            "each of 1000 repeated changes allocated memory, expected at least one that allocated none"
        );
    }

    #[test]
    fn c_code_reads_correct_values_while_variables_change() {
        let _alone = alone();
        change(&[set("PEERWEAVE_TEST_CONSTANT", "as before")]);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        assert_eq!(through_c(c"PEERWEAVE_TEST_CONSTANT").as_deref(), Some("as before"));
                        let changing = through_c(c"PEERWEAVE_TEST_CHANGING");
                        assert!(changing.as_ref().is_none_or(|value| value.starts_with("value ")), "{changing:?}");
                    }
                });
            }
            for round in 0..2_000 {
                change(&[set("PEERWEAVE_TEST_CHANGING", &format!("value {}", round % 50))]);
                change(&[unset("PEERWEAVE_TEST_CHANGING")]);
            }
            over.store(true, Ordering::Relaxed);
        });
        change(&[unset("PEERWEAVE_TEST_CONSTANT")]);
    }
}
