//! Computes the digest of the inputs of a compilation or a link.
//!
//! Each input consists of a kind and a value. Invariant: for each input, the digest covers the
//! length of the kind, the kind, the length of the value, and the value, in this order. Different
//! lists of inputs therefore never encode to the same bytes.

use std::path::Path;
use std::time::UNIX_EPOCH;

use sha2::{Digest as _, Sha256};

use crate::error::LinkError;

/// A SHA-256 digest to which inputs can be added.
pub(crate) struct Fingerprint(Sha256);

impl Fingerprint {
    pub(crate) fn new() -> Self {
        Self(Sha256::new())
    }

    pub(crate) fn bytes(&mut self, kind: &str, bytes: &[u8]) {
        for part in [kind.as_bytes(), bytes] {
            self.0.update((part.len() as u64).to_le_bytes());
            self.0.update(part);
        }
    }

    pub(crate) fn text(&mut self, kind: &str, text: &str) {
        self.bytes(kind, text.as_bytes());
    }

    /// Adds the path, the length and the modification time of a file. The content is not read,
    /// because archives are large. A different version of an archive has a different length or
    /// modification time.
    pub(crate) fn file(&mut self, path: &Path) -> Result<(), LinkError> {
        let about = std::fs::metadata(path).map_err(|error| LinkError::io(path, &error))?;
        self.text("file", &stamp(path, &about));
        Ok(())
    }

    /// Adds the path of a directory, and the paths, lengths and modification times of all files in
    /// the directory and its subdirectories.
    pub(crate) fn directory(&mut self, path: &Path) -> Result<(), LinkError> {
        let mut stamps = Vec::new();
        collect(path, &mut stamps).map_err(|error| LinkError::io(path, &error))?;
        stamps.sort();
        self.text("directory", &path.display().to_string());
        stamps.iter().for_each(|stamp| self.text("file", stamp));
        Ok(())
    }

    pub(crate) fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

/// Returns the digest (SHA-256) of bytes.
pub(crate) fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

fn collect(directory: &Path, stamps: &mut Vec<String>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        // Follows symbolic links to files, but not to directories, because such links could form a
        // cycle.
        let about = std::fs::metadata(entry.path());
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), stamps)?;
        } else if let Ok(about) = about {
            stamps.push(stamp(&entry.path(), &about));
        }
    }
    Ok(())
}

fn stamp(path: &Path, about: &std::fs::Metadata) -> String {
    let changed = about.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    format!("{}\0{}\0{}", path.display(), about.len(), changed.as_nanos())
}
