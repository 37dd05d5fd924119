//! Replacements for the functions that read the memory of other processes. This platform does not
//! support such reads, so each function returns an error.

use std::io;

/// Returns an error of kind `Unsupported`.
///
/// # Safety
/// This function has no requirements. It is `unsafe` only because the function of the same name for
/// Linux has requirements.
pub(crate) unsafe fn read(_pid: u64, _from: u64, _to: *mut u8, _bytes: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Always returns an error, because this platform cannot read the memory of other processes. The
/// error contains this reason.
pub(crate) fn probe(_pid: u64, _from: u64, _expected: u64) -> Result<(), String> {
    Err("this system has no cross-memory attach".to_owned())
}
