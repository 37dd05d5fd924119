//! A loaded library. `search.rs` finds the file to load; `bindings.rs` has typed calls.
//!
//! Invariant: a library stays mapped until the process ends, so the address of a symbol stays
//! valid.

use std::ffi::{CStr, OsStr, c_void};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// The visibility of a library's symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// The symbols are found only through the library's handle, and do not resolve references of
    /// other libraries. This visibility is sufficient for a library without plug-ins.
    Local,
    /// Libraries that are loaded later find the symbols too. This visibility is necessary for a
    /// library whose plug-ins use the library's symbols.
    Global,
}

/// A shared library, loaded until the process ends.
///
/// Clones are cheap handles to the same library.
#[derive(Clone, Debug)]
pub struct Library {
    handle: NonNull<c_void>,
    product: &'static str,
    path: Arc<Path>,
}

// SAFETY: threads share the dynamic linker's handle, which is only ever passed to `dlsym`. POSIX
// lets any thread call `dlsym` at any time, the linker synchronises the calls, and the handle is
// never closed. The test `symbols_resolve_from_several_threads` would catch a violation.
unsafe impl Send for Library {}
// SAFETY: threads share the same handle. `&Library` allows only calls of `dlsym`, which the linker
// synchronises, and reads of the immutable path. The test `symbols_resolve_from_several_threads`
// would catch a violation.
unsafe impl Sync for Library {}

impl Library {
    /// Loads a file. If `file` is a bare name, the dynamic linker searches for the library.
    ///
    /// # Errors
    /// Returns the message of the dynamic linker.
    pub(crate) fn open(product: &'static str, file: &Path, visibility: Visibility) -> Result<Self, String> {
        // SAFETY: loading runs the library's initialisers. The user who runs the program chose the
        // library by a variable, by the Python environment or by the system. That user is
        // responsible for the library, as for the program itself.
        let handle = unsafe { os::open(file, visibility) }.map_err(|error| words_of(&error, file))?;
        let handle = handle.ok_or("the dynamic linker returned no handle")?;
        let path = os::path_of(handle).unwrap_or_else(|| file.to_path_buf());
        tracing::debug!(product, path = %path.display(), "library loaded");
        Ok(Self { handle, product, path: path.into() })
    }

    /// Returns the name of the library in messages, such as `NVSHMEM`.
    pub fn product(&self) -> &'static str {
        self.product
    }

    /// Returns the path of the mapped file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn shared_path(&self) -> Arc<Path> {
        Arc::clone(&self.path)
    }

    /// Returns the directory that contains the library's file. Vendors put plug-ins and headers in
    /// this directory. Returns `None` if the path is only a bare name.
    pub fn directory(&self) -> Option<&Path> {
        self.path.parent().filter(|directory| *directory != OsStr::new(""))
    }

    /// Returns the address of a symbol. Returns `None` if the library lacks the symbol.
    pub fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is open until the process ends.
        unsafe { os::symbol(self.handle, name) }
    }
}

/// Returns the dynamic linker's message. Removes the prefix that `libloading` adds, and the file
/// name at the start of the message.
fn words_of(error: &libloading::Error, file: &Path) -> String {
    use std::error::Error as _;
    let words = error.source().map_or_else(|| error.to_string(), |source| source.to_string());
    match words.strip_prefix(&format!("{}: ", file.display())) {
        Some(rest) => rest.to_owned(),
        None => words,
    }
}

/// Functions of the dynamic linker on Unix.
#[cfg(unix)]
mod os {
    use std::ffi::{CStr, c_void};
    use std::path::{Path, PathBuf};
    use std::ptr::NonNull;

    use libloading::os::unix;

    use super::Visibility;

    /// # Safety
    /// Running the library's initialisers must be sound.
    pub(super) unsafe fn open(file: &Path, visibility: Visibility) -> Result<Option<NonNull<c_void>>, libloading::Error> {
        let seen = match visibility {
            Visibility::Local => unix::RTLD_LOCAL,
            Visibility::Global => unix::RTLD_GLOBAL,
        };
        // SAFETY: guaranteed by the caller.
        let library = unsafe { unix::Library::open(Some(file), unix::RTLD_LAZY | seen) }?;
        Ok(NonNull::new(library.into_raw()))
    }

    /// # Safety
    /// `handle` must be the handle of an open library.
    pub(super) unsafe fn symbol(handle: NonNull<c_void>, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: guaranteed by the caller, and the name ends in a zero byte.
        NonNull::new(unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) })
    }

    /// The first fields of `struct link_map` in `<link.h>`. The dynamic linker keeps one such
    /// struct for each loaded library.
    #[cfg(target_os = "linux")]
    #[repr(C)]
    struct LinkMap {
        address: usize,
        name: *const std::ffi::c_char,
    }

    /// Returns the path of the library that an open handle refers to. Returns `None` if the linker
    /// does not report a path.
    #[cfg(target_os = "linux")]
    pub(super) fn path_of(handle: NonNull<c_void>) -> Option<PathBuf> {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt as _;
        let mut map: *const LinkMap = std::ptr::null();
        // SAFETY: the handle is open, and RTLD_DI_LINKMAP stores one pointer at the address in the
        // third argument.
        let status = unsafe { libc::dlinfo(handle.as_ptr(), libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) };
        if status != 0 || map.is_null() {
            return None;
        }
        // SAFETY: the linker returned the record of an open library. The record and the name live
        // as long as the library is open, and the library is never closed.
        let name = unsafe { CStr::from_ptr((*map).name) };
        (!name.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(name.to_bytes())))
    }

    /// Returns `None`, because this module calls `dlinfo` only on Linux.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn path_of(_: NonNull<c_void>) -> Option<PathBuf> {
        None
    }
}

/// Functions of the dynamic linker on Windows. No supported vendor has a library for Windows, but
/// crates that use this crate compile on Windows.
#[cfg(windows)]
mod os {
    use std::ffi::{CStr, c_void};
    use std::mem::ManuallyDrop;
    use std::path::{Path, PathBuf};
    use std::ptr::NonNull;

    use libloading::os::windows;

    use super::Visibility;

    /// # Safety
    /// Running the library's initialisers must be sound.
    pub(super) unsafe fn open(file: &Path, _: Visibility) -> Result<Option<NonNull<c_void>>, libloading::Error> {
        // SAFETY: guaranteed by the caller.
        let library = unsafe { windows::Library::new(file) }?;
        Ok(NonNull::new(library.into_raw() as *mut c_void))
    }

    /// # Safety
    /// `handle` must be the handle of an open library.
    pub(super) unsafe fn symbol(handle: NonNull<c_void>, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle came from `open`, and is not closed here.
        let library = ManuallyDrop::new(unsafe { windows::Library::from_raw(handle.as_ptr() as _) });
        // SAFETY: the symbol is used only as a pointer of unknown type.
        let symbol = unsafe { library.get::<*mut c_void>(name.to_bytes_with_nul()) }.ok()?;
        NonNull::new(symbol.as_raw_ptr())
    }

    pub(super) fn path_of(_: NonNull<c_void>) -> Option<PathBuf> {
        None
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn libc() -> Library {
        Library::open("libc", Path::new("libc.so.6"), Visibility::Local).expect("every Linux has libc.so.6")
    }

    #[test]
    fn bare_name_is_resolved_to_a_file() {
        let library = libc();
        assert!(library.path().is_absolute(), "{}", library.path().display());
        assert!(library.directory().is_some_and(Path::is_dir));
    }

    #[test]
    fn absent_symbol_is_none() {
        let library = libc();
        assert!(library.symbol(c"getpid").is_some());
        assert!(library.symbol(c"no_such_function").is_none());
    }

    #[test]
    fn symbols_resolve_from_several_threads() {
        let library = libc();
        let first = library.symbol(c"getpid").map(|address| address.as_ptr() as usize);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert_eq!(library.symbol(c"getpid").map(|address| address.as_ptr() as usize), first));
            }
        });
    }
}
