//! Calls of the key-value store of a job. The server stores the keys and values.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::Instant;

#[cfg(target_os = "linux")]
use super::LEAVE_TIMEOUT;
use super::connection::Answer;
use super::{Link, Rendezvous, check_len};
use crate::error::BootstrapError;
use crate::wire::proto::{Frame, MAX_BLOB_LEN_BYTES, MAX_KEY_LEN_BYTES};

impl Rendezvous {
    /// Stores a value under a key. Replaces the existing value, if there is one.
    ///
    /// # Errors
    /// - [`BootstrapError::TooLarge`] if the key has more than 256 bytes, if the value has more
    ///   than 1 MiB, or if the server's store is full.
    /// - [`BootstrapError::PeLost`] if PE 0 ran the server and is lost.
    pub fn put(&self, key: &str, value: &[u8]) -> Result<(), BootstrapError> {
        self.put_by(key, value, Instant::now() + self.deadline)
    }

    pub(crate) fn put_by(&self, key: &str, value: &[u8], deadline: Instant) -> Result<(), BootstrapError> {
        self.check_process("put")?;
        let call = || format!("put({key:?})");
        check_len("key", key.len(), MAX_KEY_LEN_BYTES, call)?;
        check_len("value", value.len(), MAX_BLOB_LEN_BYTES, call)?;
        match &self.link {
            Link::Alone { store, news } => {
                store.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), value.to_owned());
                news.notify_all();
                Ok(())
            }
            Link::Joined { connection, .. } => {
                let start = Instant::now();
                let request = connection.next_request();
                let frame = Frame::Put { request, key: key.to_owned(), value: value.to_owned() };
                match connection.request(request, &frame, deadline) {
                    Answer::Done(_) => Ok(()),
                    answer => Err(self.error(call(), answer, start)),
                }
            }
        }
    }

    /// Returns the value of a key. Waits until a PE has stored a value under the key.
    ///
    /// # Errors
    /// - [`BootstrapError::Timeout`] if no PE has stored a value under the key by the deadline.
    /// - [`BootstrapError::PeLost`] if a PE is lost while the key has no value.
    pub fn get(&self, key: &str) -> Result<Vec<u8>, BootstrapError> {
        self.get_by(key, Instant::now() + self.deadline)
    }

    pub(crate) fn get_by(&self, key: &str, deadline: Instant) -> Result<Vec<u8>, BootstrapError> {
        self.check_process("get")?;
        let call = || format!("get({key:?})");
        check_len("key", key.len(), MAX_KEY_LEN_BYTES, call)?;
        let start = Instant::now();
        match &self.link {
            Link::Alone { store, news } => {
                let guard = store.lock().unwrap_or_else(PoisonError::into_inner);
                let absent = |store: &mut HashMap<String, Vec<u8>>| !store.contains_key(key);
                let left = deadline.saturating_duration_since(start);
                let (store, _) = news.wait_timeout_while(guard, left, absent).unwrap_or_else(PoisonError::into_inner);
                let late = || BootstrapError::Timeout { call: call(), waited: start.elapsed(), missing: Vec::new() };
                store.get(key).cloned().ok_or_else(late)
            }
            Link::Joined { connection, .. } => {
                let request = connection.next_request();
                let frame = Frame::Get { request, key: key.to_owned(), wait: true };
                match connection.request(request, &frame, deadline) {
                    Answer::Value(value) => Ok(value),
                    answer => Err(self.error(call(), answer, start)),
                }
            }
        }
    }

    /// Returns the current value of a key. Returns `None` if the key has no value.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, BootstrapError> {
        self.try_get_by(key, Instant::now() + self.deadline)
    }

    pub(crate) fn try_get_by(&self, key: &str, deadline: Instant) -> Result<Option<Vec<u8>>, BootstrapError> {
        self.check_process("try_get")?;
        let call = || format!("try_get({key:?})");
        check_len("key", key.len(), MAX_KEY_LEN_BYTES, call)?;
        match &self.link {
            Link::Alone { store, .. } => Ok(store.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()),
            Link::Joined { connection, .. } => {
                let start = Instant::now();
                let request = connection.next_request();
                let frame = Frame::Get { request, key: key.to_owned(), wait: false };
                match connection.request(request, &frame, deadline) {
                    Answer::Value(value) => Ok(Some(value)),
                    Answer::Absent => Ok(None),
                    answer => Err(self.error(call(), answer, start)),
                }
            }
        }
    }

    /// Removes a key and its value. A missing key is not an error. Callers that wait for the key
    /// continue to wait.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn remove(&self, key: &str) -> Result<(), BootstrapError> {
        self.check_process("remove")?;
        let call = || format!("remove({key:?})");
        check_len("key", key.len(), MAX_KEY_LEN_BYTES, call)?;
        match &self.link {
            Link::Alone { store, .. } => {
                store.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
                Ok(())
            }
            Link::Joined { connection, .. } => {
                let start = Instant::now();
                let request = connection.next_request();
                match connection.request(request, &Frame::Remove { request, key: key.to_owned() }, start + self.deadline) {
                    Answer::Done(_) => Ok(()),
                    answer => Err(self.error(call(), answer, start)),
                }
            }
        }
    }

    /// Removes a key without waiting for the answer. The server processes the removal before later
    /// requests of this PE.
    #[cfg(target_os = "linux")]
    pub(crate) fn remove_soon(&self, key: &str) {
        if let Link::Joined { connection, .. } = &self.link {
            let request = connection.next_request();
            connection.send_only(&Frame::Remove { request, key: key.to_owned() }, Instant::now() + LEAVE_TIMEOUT);
        }
    }
}
