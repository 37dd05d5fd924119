//! Lists the libraries that any code has mapped into this process.

use std::path::PathBuf;

/// Returns the files that are mapped into this process and have names that begin with `stem`, such
/// as `libnccl.so`. Each file is listed once, in the order of the addresses at which the files are
/// mapped.
///
/// A process can have two copies of a communication library, for example a copy from a Python wheel
/// and a copy from the system. Handles of one copy must not be passed to the other copy. The result
/// is empty on systems without `/proc/self/maps`.
///
/// ```
/// # #[cfg(all(target_os = "linux", target_env = "gnu"))]
/// assert_eq!(peerweave_dylib::mapped("libc.so").len(), 1);
/// ```
pub fn mapped(stem: &str) -> Vec<PathBuf> {
    // The file lists the mappings of one moment. Paths of other libraries may be converted with
    // loss, because those paths are not used.
    std::fs::read("/proc/self/maps").map(|maps| files(&String::from_utf8_lossy(&maps), stem)).unwrap_or_default()
}

fn files(maps: &str, stem: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in maps.lines() {
        // Fields of a line: address, permissions, offset, device, inode, path. The path may have
        // blanks.
        let Some(path) = line.splitn(6, ' ').nth(5).map(|path| path.trim_start().trim_end_matches(" (deleted)")) else {
            continue;
        };
        let path = PathBuf::from(path);
        let matches = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(stem));
        if matches && !found.contains(&path) {
            found.push(path);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_file_with_spaces_in_its_path_is_returned_once() {
        let maps = "\
7f0 r--p 00000000 08:01 12                         /opt/a b/libnccl.so.2
7f1 r-xp 00001000 08:01 12                         /opt/a b/libnccl.so.2
7f2 r--p 00000000 08:01 13                         /usr/lib/libnccl.so.2.30.4 (deleted)
7f3 rw-p 00000000 00:00 0                          [heap]
7f4 rw-p 00000000 00:00 0 
7f5 r--p 00000000 08:01 14                         /usr/lib/libnccl-net.so
";
        assert_eq!(files(maps, "libnccl.so"), [PathBuf::from("/opt/a b/libnccl.so.2"), "/usr/lib/libnccl.so.2.30.4".into()]);
    }
}
