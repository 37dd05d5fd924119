//! The disk cache of compiled and linked results. Each result is one file, whose name is the digest
//! of all inputs of the result.
//!
//! Several processes may use a directory concurrently. A file is written under a temporary name and
//! then renamed, so a reader never sees a partial file. A file is used only if it belongs to this
//! user, if no other user can write it, and if the header of the file matches the key and the
//! content. Any other file is treated as missing.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::environment::{names, variable};
use crate::error::LinkError;
use crate::source::fingerprint::digest;

/// The key of a cached result: the SHA-256 digest of all inputs that determine the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key([u8; 32]);

impl Key {
    pub(crate) fn new(digest: [u8; 32]) -> Self {
        Self(digest)
    }

    fn file_name(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + ".cubin"
    }
}

/// The disk cache: a directory that contains compiled and linked results.
///
/// The directory may be deleted at any time, even while programs run.
#[derive(Clone, Debug)]
pub struct Cache {
    directory: PathBuf,
}

/// The first bytes of each cache file. The key, the length of the result, the digest of the result
/// and the result follow.
const MAGIC: &[u8; 16] = b"peerweave-link 1";
const HEAD_BYTES: usize = 16 + 32 + 8 + 32;
/// Longest time for which a process waits for another process that computes the same result.
/// Compiling all reductions of NVSHMEM takes minutes.
const LONGEST_TURN: Duration = Duration::from_secs(300);

impl Cache {
    /// Returns the cache that stores its files in `directory`. Creates the directory if it does not
    /// exist.
    ///
    /// # Errors
    /// Returns the I/O error if the directory cannot be created.
    pub fn in_directory(directory: impl Into<PathBuf>) -> std::io::Result<Self> {
        let directory = directory.into();
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&directory)?;
        Ok(Self { directory })
    }

    /// Returns the cache that the environment specifies. The variable `PEERWEAVE_CACHE_DIR`
    /// contains the directory. If that variable is not set, the directory is
    /// `$XDG_CACHE_HOME/peerweave`, or `$HOME/.cache/peerweave` if `XDG_CACHE_HOME` is not set.
    ///
    /// Returns `None` if `PEERWEAVE_CACHE_DIR` is `off`, if none of the three variables is set, or
    /// if the directory cannot be created.
    pub fn from_env() -> Option<Self> {
        let directory = match variable(names::CACHE_DIR) {
            Some(off) if off == "off" => return None,
            Some(directory) => PathBuf::from(directory),
            None => match (variable("XDG_CACHE_HOME"), variable("HOME")) {
                (Some(cache), _) => PathBuf::from(cache).join("peerweave"),
                (None, Some(home)) => PathBuf::from(home).join(".cache/peerweave"),
                (None, None) => return None,
            },
        };
        Self::in_directory(&directory)
            .inspect_err(|error| tracing::warn!(%error, directory = %directory.display(), "cannot create the cache directory, so linked kernels are not cached"))
            .ok()
    }

    /// Returns the directory of the cache.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the path of the file that stores the result for `key`. The file may not exist yet.
    pub fn path(&self, key: &Key) -> PathBuf {
        self.directory.join(key.file_name())
    }

    /// Returns the result that is stored for `key`. Returns `None` if the file is missing or
    /// damaged, or if another user owns the file or can write it.
    pub fn get(&self, key: &Key) -> Option<Vec<u8>> {
        let path = self.path(key);
        let mut file = File::open(&path).ok()?;
        if !is_ours(&file) {
            tracing::warn!(path = %path.display(), "ignored a cache file that another user owns or can write");
            return None;
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).ok()?;
        let body = body_of(&bytes, key);
        if body.is_none() {
            tracing::warn!(path = %path.display(), "ignored a damaged cache file");
        }
        body.map(<[u8]>::to_vec)
    }

    /// Stores a result. If the result cannot be stored, the error is only logged, and the next link
    /// computes the result again.
    pub fn put(&self, key: &Key, body: &[u8]) {
        if let Err(error) = self.try_put(key, body) {
            tracing::warn!(%error, directory = %self.directory.display(), "cannot store a result in the cache");
        }
    }

    fn try_put(&self, key: &Key, body: &[u8]) -> std::io::Result<()> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let partial = self.directory.join(format!(".{}.{}.{number}", key.file_name(), std::process::id()));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let written = options.open(&partial).and_then(|mut file| {
            file.write_all(&head_of(body, key))?;
            file.write_all(body)?;
            // The bytes must be on disk before the rename is.
            file.sync_all()
        });
        let stored = written.and_then(|()| std::fs::rename(&partial, self.path(key)));
        if stored.is_err() {
            let _ = std::fs::remove_file(&partial);
        }
        stored
    }

    /// Returns the result that is stored for a key, or computes and stores the result. If several
    /// processes need the same result, one process computes the result and the other processes
    /// wait. Returns the result, the log, and whether the result came from the cache. The log is
    /// empty for a result from the cache.
    pub(crate) fn get_or(
        &self,
        key: &Key,
        compute: impl FnOnce() -> Result<(Vec<u8>, String), LinkError>,
    ) -> Result<(Vec<u8>, String, bool), LinkError> {
        if let Some(found) = self.get(key) {
            return Ok((found, String::new(), true));
        }
        let _turn = self.turn(key);
        if let Some(found) = self.get(key) {
            return Ok((found, String::new(), true));
        }
        let (result, log) = compute()?;
        self.put(key, &result);
        Ok((result, log, false))
    }

    /// Acquires the lock for computing the result for `key`. Dropping the returned file releases
    /// the lock. Returns `None` if the lock is not free within [`LONGEST_TURN`], or if the lock
    /// file cannot be opened or locked. In these cases, several processes may compute the same
    /// result.
    fn turn(&self, key: &Key) -> Option<File> {
        let path = self.directory.join(format!("{}.lock", key.file_name()));
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).ok()?;
        let deadline = Instant::now() + LONGEST_TURN;
        loop {
            match file.try_lock() {
                Ok(()) => return Some(file),
                Err(std::fs::TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(10))
                }
                Err(_) => return None,
            }
        }
    }
}

fn head_of(body: &[u8], key: &Key) -> Vec<u8> {
    [&MAGIC[..], &key.0, &(body.len() as u64).to_le_bytes(), &digest(body)].concat()
}

fn body_of<'a>(bytes: &'a [u8], key: &Key) -> Option<&'a [u8]> {
    let (head, body) = bytes.split_at_checked(HEAD_BYTES)?;
    (head == head_of(body, key)).then_some(body)
}

/// Returns whether the file belongs to this user and no other user can write the file. The check is
/// necessary because the code in the file runs on the GPU with this user's rights.
#[cfg(unix)]
fn is_ours(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    file.metadata().is_ok_and(|about| about.uid() == rustix::process::geteuid().as_raw() && about.mode() & 0o022 == 0)
}

#[cfg(not(unix))]
fn is_ours(_: &File) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> (tempfile::TempDir, Cache) {
        let directory = tempfile::tempdir().expect("a temporary directory can be created");
        let cache = Cache::in_directory(directory.path().join("a/b")).expect("the directory can be created");
        (directory, cache)
    }

    fn key(number: u8) -> Key {
        Key::new([number; 32])
    }

    #[test]
    fn cache_returns_a_stored_result() {
        let (_directory, cache) = cache();
        assert_eq!(cache.get(&key(1)), None);
        cache.put(&key(1), b"cubin");
        cache.put(&key(2), b"");
        assert_eq!((cache.get(&key(1)).as_deref(), cache.get(&key(2)).as_deref()), (Some(&b"cubin"[..]), Some(&b""[..])));
    }

    #[test]
    fn truncated_cache_file_is_ignored() {
        let (_directory, cache) = cache();
        cache.put(&key(1), b"a result of some length");
        let whole = std::fs::read(cache.path(&key(1))).expect("the cache file exists");
        for len in 0..whole.len() {
            std::fs::write(cache.path(&key(1)), &whole[..len]).expect("the cache file is writable");
            assert_eq!(cache.get(&key(1)), None, "{len} of {} bytes", whole.len());
        }
        cache.put(&key(1), b"again");
        assert_eq!(cache.get(&key(1)).as_deref(), Some(&b"again"[..]));
    }

    #[test]
    fn cache_file_that_is_corrupt_or_for_another_key_is_ignored() {
        let (_directory, cache) = cache();
        cache.put(&key(1), b"a result");
        let whole = std::fs::read(cache.path(&key(1))).expect("the cache file exists");
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(cache.path(&key(1)), &bytes).expect("the cache file is writable");
            assert_eq!(cache.get(&key(1)), None, "byte {at}");
        }
        std::fs::write(cache.path(&key(2)), &whole).expect("the second cache file is writable");
        assert_eq!(cache.get(&key(2)), None);
    }

    #[cfg(unix)]
    #[test]
    fn cache_file_writable_by_others_is_ignored() {
        use std::os::unix::fs::PermissionsExt as _;
        let (_directory, cache) = cache();
        cache.put(&key(1), b"a result");
        for (mode, found) in [(0o600, true), (0o644, true), (0o660, false), (0o602, false)] {
            std::fs::set_permissions(cache.path(&key(1)), std::fs::Permissions::from_mode(mode))
                .expect("the cache file is writable");
            assert_eq!(cache.get(&key(1)).is_some(), found, "{mode:o}");
        }
    }

    #[test]
    fn readers_never_see_a_partially_written_cache_file() {
        let (_directory, cache) = cache();
        let results: Vec<Vec<u8>> = (0..4_u8).map(|byte| vec![byte; 100_000]).collect();
        std::thread::scope(|scope| {
            for result in &results {
                scope.spawn(|| (0..20).for_each(|_| cache.put(&key(1), result)));
                scope.spawn(|| {
                    for _ in 0..40 {
                        assert!(cache.get(&key(1)).is_none_or(|found| results.contains(&found)));
                    }
                });
            }
        });
        let left = std::fs::read_dir(cache.directory()).expect("the cache directory exists").count();
        assert_eq!(left, 1, "the cache directory contains only the file of the result");
    }

    #[test]
    fn concurrent_threads_compute_a_cached_result_once() {
        let (_directory, cache) = cache();
        let computed = AtomicU64::new(0);
        let compute = || {
            computed.fetch_add(1, Ordering::SeqCst);
            Ok((b"cubin".to_vec(), "a log".to_owned()))
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let (result, log, cached) = cache.get_or(&key(1), compute).expect("the computation succeeds");
                    assert_eq!((&result[..], &log[..]), (&b"cubin"[..], if cached { "" } else { "a log" }));
                });
            }
        });
        assert_eq!(computed.into_inner(), 1);
    }

    #[test]
    fn cache_lock_is_held_by_one_thread_at_a_time() {
        let (_directory, cache) = cache();
        let inside = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let turn = cache.turn(&key(1));
                    assert!(turn.is_some());
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    std::thread::sleep(Duration::from_millis(5));
                    inside.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
    }
}
