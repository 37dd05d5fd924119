//! Reads route tables from files. A line of a file consists of words. `#` begins a comment. Sizes
//! are in bytes, with an optional suffix K, M or G for powers of 1024. `rest` stands for all larger
//! sizes. For each number of ranks, the rows `own` are in ascending order of sizes, and the last of
//! these rows has the size `rest` and the algorithm `chunked`.
//!
//! ```text
//! peerweave-routes 1                                  the format and its version: the first line
//! arch sm_90                                          the architecture, or `any`
//! threshold NAME SIZE                                 each threshold once
//! own all_reduce RANKS UP-TO ALGORITHM BLOCKSxTHREADS Peerweave's kernel for all_reduce and reduce
//! nccl OPERATION RANKS FROM UP-TO                     sizes for which NCCL is faster
//! ```

use std::path::Path;

use peerweave_bootstrap::env::parse_bytes;
use peerweave_collectives::MAX_RANKS;

use super::Provider;
use super::decide::library_kind;
use super::table::{ALGORITHMS, LibraryRow, OwnRow, RouteTable, Thresholds};

/// The first line of a file with a route table: the format and its version.
pub(super) const HEAD: &str = "peerweave-routes 1";
const FORMAT: &str = "peerweave-routes";
const VERSION: &str = "1";

/// The reason why the route table in a file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RoutesError {
    /// The file cannot be read.
    #[error("cannot read the route table {file}: {error}")]
    Unreadable {
        /// Path of the file.
        file: String,
        /// The error that the operating system returned.
        error: String,
    },
    /// The file has the format of a different version of Peerweave.
    #[error("the route table {file} has version {found}, expected {VERSION}; write it again with `peerweave tune`")]
    Version {
        /// Path of the file.
        file: String,
        /// Version of the file's format.
        found: String,
    },
    /// A line of the file is invalid, or the file lacks a line.
    #[error("the route table {file} is damaged in line {line}: {what}; write it again with `peerweave tune`")]
    Damaged {
        /// Path of the file.
        file: String,
        /// Number of the invalid line, or number of the last line if a line is missing.
        line: usize,
        /// Description of the value found and of the expected value.
        what: String,
    },
    /// The table in the file is for GPUs of a different architecture.
    #[error("the route table {file} is for GPUs of {found}, expected {expected}; measure this machine with `peerweave tune`")]
    Foreign {
        /// Path of the file.
        file: String,
        /// Architecture of the GPUs to which the table applies.
        found: String,
        /// Architecture of this PE's GPU.
        expected: String,
    },
}

impl RouteTable {
    /// Reads a route table from a file. The table must be for GPUs of architecture `arch`, or for
    /// `any`.
    ///
    /// # Errors
    /// [`RoutesError`], with the path of the file.
    pub fn read(path: &Path, arch: &str) -> Result<Self, RoutesError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| RoutesError::Unreadable { file: file.clone(), error: error.to_string() })?;
        let table = Self::parse(&file, &text)?;
        if table.arch != arch && table.arch != "any" {
            return Err(RoutesError::Foreign { file, found: table.arch, expected: arch.to_owned() });
        }
        Ok(table)
    }

    /// Parses the text of a route table. `name` is the name of the file in errors and explanations.
    ///
    /// # Errors
    /// [`RoutesError::Version`] if the text has the format of a different version.
    /// [`RoutesError::Damaged`] if a line is invalid or missing.
    pub fn parse(name: &str, text: &str) -> Result<Self, RoutesError> {
        let damaged = |line, what| RoutesError::Damaged { file: name.to_owned(), line, what };
        let mut lines = text.lines().enumerate().filter_map(|(at, line)| {
            let words: Vec<&str> = line.split('#').next().unwrap_or("").split_whitespace().collect();
            (!words.is_empty()).then_some((at + 1, words))
        });
        match lines.next() {
            Some((_, words)) if words == [FORMAT, VERSION] => {}
            Some((_, words)) if words.len() == 2 && words[0] == FORMAT => {
                return Err(RoutesError::Version { file: name.to_owned(), found: words[1].to_owned() });
            }
            other => {
                let found = other.map_or_else(String::new, |(_, words)| words.join(" ").chars().take(40).collect());
                return Err(damaged(1, format!("found {found:?}, expected {HEAD:?}")));
            }
        }
        let (mut arch, mut values, mut own, mut libraries) = (None, [None; 3], Vec::new(), Vec::new());
        for (at, words) in lines {
            let outcome = match &words[..] {
                ["arch", one] if arch.is_none() && is_arch(one) => {
                    arch = Some((*one).to_owned());
                    Ok(())
                }
                ["threshold", name, size] => match Thresholds::NAMES.iter().position(|known| known == name) {
                    Some(index) if values[index].is_none() => bytes(size).map(|value| values[index] = Some(value)),
                    Some(_) => Err(format!("threshold {name} occurs twice")),
                    None => Err(format!("{name:?} is not a threshold, expected one of {}", Thresholds::NAMES.join(", "))),
                },
                ["own", rest @ ..] => own_row(rest).map(|row| own.push(row)),
                ["nccl", rest @ ..] => library_row(Provider::Nccl, rest).map(|row| libraries.push(row)),
                _ => Err(format!(
                    "{:?} is not a valid line, expected \"arch ARCHITECTURE\" (once), \"threshold NAME SIZE\", \"own ...\" or \"nccl ...\"",
                    words.join(" ")
                )),
            };
            outcome.map_err(|what| damaged(at, what))?;
        }
        let end = text.lines().count().max(1);
        let arch = arch.ok_or_else(|| damaged(end, "the line \"arch\" is missing".to_owned()))?;
        if let Some(missing) = values.iter().position(Option::is_none) {
            return Err(damaged(end, format!("threshold {} is missing", Thresholds::NAMES[missing])));
        }
        let thresholds = Thresholds::of(values.map(Option::unwrap_or_default));
        let table = Self { name: name.to_owned(), arch, thresholds, own, libraries };
        table.check().map_err(|what| damaged(end, what))?;
        Ok(table)
    }
}

fn is_arch(word: &str) -> bool {
    word == "any" || word.parse::<peerweave_link::Arch>().is_ok_and(|arch| arch.to_string() == word)
}

/// Parses a size in bytes, such as `64K`. Returns [`u64::MAX`] for the word `rest`, which stands
/// for all larger sizes.
fn bytes(word: &str) -> Result<u64, String> {
    let refused = || format!("{word:?} is not a size, expected a number of bytes, such as 100, 64K or 16M, or the word rest");
    match word {
        "rest" => Ok(u64::MAX),
        _ => parse_bytes(word).map_err(|_| refused()),
    }
}

fn ranks(word: &str) -> Result<(u32, u32), String> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if (1..=last).contains(&first) && last <= MAX_RANKS as u32 => Ok((first, last)),
        _ => Err(format!("{word:?} is not a range of ranks, expected numbers from 1 to {MAX_RANKS}, such as 2 or 3-4")),
    }
}

fn own_row(words: &[&str]) -> Result<OwnRow, String> {
    let ["all_reduce", of, up_to, algorithm, shape] = words else {
        return Err(format!(
            "{:?} is invalid after \"own\", expected \"all_reduce RANKS UP-TO ALGORITHM BLOCKSxTHREADS\"",
            words.join(" ")
        ));
    };
    let names = ALGORITHMS.map(|(_, name)| name).join(", ");
    let found = ALGORITHMS.into_iter().find(|(_, name)| name == algorithm);
    let (algorithm, _) = found.ok_or_else(|| format!("{algorithm:?} is not an algorithm, expected one of {names}"))?;
    let numbers = shape.split_once('x').and_then(|(blocks, threads)| Some((blocks.parse().ok()?, threads.parse().ok()?)));
    match numbers {
        Some((blocks, threads @ (32..=512))) if (1..=1024).contains(&blocks) && u32::is_multiple_of(threads, 32) => {
            Ok(OwnRow { ranks: ranks(of)?, up_to: bytes(up_to)?, algorithm, blocks, threads })
        }
        _ => Err(format!("{shape:?} is not a shape, expected 1 to 1024 blocks x 32 to 512 threads (whole warps), such as 4x128")),
    }
}

fn library_row(library: Provider, words: &[&str]) -> Result<LibraryRow, String> {
    let [operation, of, from, up_to] = words else {
        let (found, name) = (words.join(" "), library.name());
        return Err(format!("{found:?} is invalid after \"{name}\", expected \"OPERATION RANKS FROM UP-TO\""));
    };
    let kind =
        library_kind(operation).ok_or_else(|| format!("{operation:?} is not an operation that a row can assign to NCCL"))?;
    let bytes = (bytes(from)?, bytes(up_to)?);
    if bytes.0 > bytes.1 {
        return Err(format!("the sizes {from} to {up_to} are reversed, expected the smaller size first"));
    }
    Ok(LibraryRow { library, kind, ranks: ranks(of)?, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(from: &str, to: &str) -> String {
        let text = RouteTable::builtin("sm_90").to_string();
        assert!(text.contains(from), "{text}");
        text.replacen(from, to, 1)
    }

    #[test]
    fn written_route_table_is_read_back_unchanged() {
        for arch in ["sm_90", "sm_100"] {
            let table = RouteTable::builtin(arch);
            let again = RouteTable::parse("file", &table.to_string()).unwrap();
            assert_eq!((&again.own, &again.libraries), (&table.own, &table.libraries));
            assert_eq!((again.thresholds, again.digest()), (table.thresholds, table.digest()));
        }
    }

    #[test]
    fn error_of_a_damaged_route_table_has_file_and_line() {
        for (from, to, line, what) in [
            ("peerweave-routes 1", "something else", 1, "found \"something else\", expected \"peerweave-routes 1\""),
            ("arch sm_90", "arch H200", 2, "is not a valid line"),
            ("arch sm_90", "# arch", 24, "the line \"arch\" is missing"),
            ("16M", "16Q", 4, "\"16Q\" is not a size"),
            ("threshold parts_by_lines_up_to", "threshold parts", 4, "\"parts\" is not a threshold"),
            ("threshold parts_by_lines_up_to 16M\n", "", 23, "threshold parts_by_lines_up_to is missing"),
            ("threshold parts_by_lines_up_to", "threshold programmatic_up_to", 4, "occurs twice"),
            ("1-2 8K one_shot", "1-9 8K one_shot", 6, "\"1-9\" is not a range of ranks"),
            ("1-2 8K one_shot", "1-2 8K three_shot", 6, "\"three_shot\" is not an algorithm"),
            ("4x128", "4x100", 6, "\"4x100\" is not a shape"),
            ("4x128", "4x1024", 6, "\"4x1024\" is not a shape"),
            ("1-2 8K", "1-2 1G", 24, "not in ascending order of UP-TO"),
            ("1-2 rest chunked", "1-2 rest two_shot", 24, "is not \"rest chunked\""),
            ("nccl reduce", "nccl barrier", 23, "\"barrier\" is not an operation"),
            ("nccl reduce 2 48M rest", "nccl reduce 2 48M 1M", 23, "are reversed"),
            ("nccl reduce 2 48M rest", "nccl reduce 2 48M", 23, "is invalid after \"nccl\""),
        ] {
            let error = RouteTable::parse("my.routes", &text(from, to)).unwrap_err();
            let RoutesError::Damaged { file, line: found, what: why } = &error else {
                panic!("{error}, expected a damaged table")
            };
            assert_eq!((file.as_str(), *found), ("my.routes", line), "{error}");
            assert!(why.contains(what), "{error}");
            assert!(error.to_string().contains("my.routes"), "{error}");
        }
    }

    #[test]
    fn route_table_of_a_different_version_or_gpu_is_refused() {
        let error = RouteTable::parse("my.routes", &text("routes 1", "routes 2")).unwrap_err();
        assert_eq!(error, RoutesError::Version { file: "my.routes".into(), found: "2".into() });
        let directory = std::env::temp_dir().join(format!("peerweave-routes-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("my.routes");
        let error = RouteTable::read(&path, "sm_90").unwrap_err();
        assert!(matches!(&error, RoutesError::Unreadable { file, .. } if file.ends_with("my.routes")), "{error}");
        std::fs::write(&path, text("arch", "arch")).unwrap();
        assert_eq!(RouteTable::read(&path, "sm_90").unwrap().arch(), "sm_90");
        let error = RouteTable::read(&path, "sm_100").unwrap_err();
        assert!(
            matches!(&error, RoutesError::Foreign { found, expected, .. } if found == "sm_90" && expected == "sm_100"),
            "{error}"
        );
        std::fs::remove_dir_all(directory).unwrap();
    }
}
