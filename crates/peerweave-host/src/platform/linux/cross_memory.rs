//! Reads memory of other processes with cross-memory attach (`process_vm_readv`), if the system
//! permits it.

use std::io;

/// Copies `bytes` bytes from the address `from` in process `pid` to `to`.
///
/// # Safety
/// `to` is valid for writes of `bytes` bytes.
pub(crate) unsafe fn read(pid: u64, from: u64, to: *mut u8, bytes: usize) -> io::Result<()> {
    let mut done = 0;
    while done < bytes {
        let local = libc::iovec { iov_base: to.wrapping_add(done).cast(), iov_len: bytes - done };
        let remote = libc::iovec { iov_base: (from as usize + done) as *mut libc::c_void, iov_len: bytes - done };
        // SAFETY: `local` is a part of the range of the caller. The kernel checks `remote`, and
        // returns an error if it is not mapped in the other process.
        let read = unsafe { libc::process_vm_readv(pid as libc::pid_t, &local, 1, &remote, 1, 0) };
        match read {
            n if n > 0 => done += n as usize,
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

/// Checks that the word at `from` in process `pid` can be read and is `expected`. Returns the
/// reason if the check fails.
pub(crate) fn probe(pid: u64, from: u64, expected: u64) -> Result<(), String> {
    let mut word = 0u64;
    // SAFETY: `word` is a local variable of 8 bytes.
    match unsafe { read(pid, from, (&raw mut word).cast(), 8) } {
        Ok(()) if word == expected => Ok(()),
        Ok(()) => Err(format!("the word at {from:#x} in process {pid} is {word:#x}, expected {expected:#x}")),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cross_memory_probe_fails_if_the_word_differs_or_is_unmapped() {
        let word = 77u64;
        let pid = u64::from(std::process::id());
        assert_eq!(probe(pid, (&raw const word) as u64, 77), Ok(()));
        assert!(probe(pid, (&raw const word) as u64, 78).is_err());
        assert!(probe(pid, 8, 0).is_err());
    }
}
