//! The identity of this process. PEs compare their identities to detect that they are threads of
//! one process.
//!
//! Invariant: two PEs with the same process identity share an address space and the registry below.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// Identity of a process: random bytes and the process ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProcessId(pub(crate) [u8; 16]);

impl ProcessId {
    /// Returns the identity of this process. A forked child has a different identity.
    pub(crate) fn mine() -> Self {
        static RANDOM: OnceLock<[u8; 12]> = OnceLock::new();
        let random = RANDOM.get_or_init(|| {
            let mut bytes = [0; 12];
            // Without random bytes, the clock and the process ID (below) distinguish processes.
            if getrandom::fill(&mut bytes).is_err() {
                let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_nanos() as u64);
                bytes[..8].copy_from_slice(&now.to_le_bytes());
            }
            bytes
        });
        let mut id = [0; 16];
        id[..12].copy_from_slice(random);
        id[12..].copy_from_slice(&std::process::id().to_le_bytes());
        Self(id)
    }
}

/// A value that a PE makes available to the other PEs of its process by [`publish`].
pub(crate) type Shared = Arc<dyn Any + Send + Sync>;

static REGISTRY: Mutex<Option<HashMap<u64, Weak<dyn Any + Send + Sync>>>> = Mutex::new(None);

/// Registration of a published value: keeps the value alive, and has the key under which [`find`]
/// returns the value. Dropping the entry removes the key.
pub(crate) struct Entry {
    pub(crate) key: u64,
    _value: Shared,
}

/// Publishes a value to the other PEs of this process under a new key.
pub(crate) fn publish(value: Shared) -> Entry {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let key = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    registry.get_or_insert_default().insert(key, Arc::downgrade(&value));
    Entry { key, _value: value }
}

/// Returns the value that a PE of this process has published under `key`. Returns `None` if the key
/// is unknown, the value was dropped, or its type is not `T`.
pub(crate) fn find<T: Any + Send + Sync>(key: u64) -> Option<Arc<T>> {
    let registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    let value = registry.as_ref()?.get(&key)?.upgrade()?;
    drop(registry);
    value.downcast().ok()
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(registry) = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            registry.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_value_is_found_by_key_until_the_entry_is_dropped() {
        let entry = publish(Arc::new(7u32));
        assert_eq!(find::<u32>(entry.key).as_deref(), Some(&7));
        assert!(find::<u64>(entry.key).is_none(), "the value has another type");
        let key = entry.key;
        drop(entry);
        assert!(find::<u32>(key).is_none());
    }

    #[test]
    fn threads_of_one_process_have_equal_process_ids() {
        let other = std::thread::spawn(ProcessId::mine).join().expect("the thread does not panic");
        assert_eq!(other, ProcessId::mine());
    }
}
