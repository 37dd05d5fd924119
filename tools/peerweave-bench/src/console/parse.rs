//! Parses the values of options: sizes, durations, numbers of PEs and machines, file names.
//!
//! Invariant: `1K` is 1024 bytes, as in nccl-tests; a value that does not fit its type is an error.

use std::path::PathBuf;
use std::time::Duration;

use peerweave_bootstrap::env::{NotBytes, parse_bytes};

/// Parses a number of bytes, as [`parse_bytes`] does.
///
/// # Errors
/// The text is not valid. The message quotes the text and describes the expected form.
///
/// ```
/// use peerweave_bench::console::parse::parse_size;
///
/// assert_eq!(parse_size("64M"), Ok(64 << 20));
/// assert!(parse_size("64X").is_err());
/// ```
pub fn parse_size(text: &str) -> Result<usize, String> {
    let too_large = || format!("{text:?} is more bytes than this machine can address");
    let bytes = parse_bytes(text).map_err(|error| match error {
        NotBytes::Form => {
            format!("{text:?} is not a valid size, expected an integer with an optional K, M, G or T, such as 8, 1K or 64M")
        }
        NotBytes::Range => too_large(),
    })?;
    usize::try_from(bytes).map_err(|_| too_large())
}

/// Formats a number of bytes in the shortest form that [`parse_size`] accepts.
pub fn format_size(bytes: usize) -> String {
    for (shift, unit) in [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// Parses a duration: a number, then nothing or `s` (seconds), `ms`, `m` or `min` (minutes), `h`
/// (hours).
///
/// # Errors
/// The text is not valid. The message quotes the text and describes the expected form. Zero is
/// refused, because a limit of zero would stop the job at once.
///
/// ```
/// use peerweave_bench::console::parse::parse_duration;
/// use std::time::Duration;
///
/// assert_eq!(parse_duration("1.5"), Ok(Duration::from_millis(1500)));
/// assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
/// ```
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!(
            "{text:?} is not a valid duration, expected a number above 0 with an optional ms, s, m or h, such as 30, 500ms or 2m"
        )
    };
    let unit_start = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_start);
    let seconds = match unit {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let duration = Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())?;
    if duration.is_zero() { Err(wrong()) } else { Ok(duration) }
}

/// Maximum number of PEs that one launcher starts; a larger number is most likely a typing error.
const MAX_LOCAL_PES: usize = 4096;

/// Parses a number of PEs.
pub fn parse_pes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=MAX_LOCAL_PES).contains(&n) => Ok(n),
        _ => Err(format!("{text:?} is not a valid number of PEs, expected 1 to {MAX_LOCAL_PES}")),
    }
}

/// Parses the file name of a plot. Only SVG is supported, so the extension, if any, must be `.svg`.
pub fn parse_picture(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension() {
        Some(extension) if extension != "svg" => Err("expected a file name that ends with .svg".to_owned()),
        _ => Ok(path),
    }
}

/// Parses a number of machines.
pub fn parse_machines(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=65536).contains(&n) => Ok(n),
        _ => Err(format!("{text:?} is not a valid number of machines, expected 1 to 65536")),
    }
}

/// Returns the default number of PEs: the number of CPUs that this process may use.
pub fn default_pes() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MAX_LOCAL_PES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_suffixes_in_either_letter_case_are_powers_of_1024() {
        let table = [
            ("0", 0),
            ("8", 8),
            ("8B", 8),
            ("1K", 1024),
            ("1k", 1024),
            ("3KiB", 3072),
            ("64M", 64 << 20),
            ("64mb", 64 << 20),
            ("1G", 1 << 30),
            ("2T", 2 << 40),
        ];
        for (text, bytes) in table {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn invalid_size_error_quotes_the_text() {
        for text in ["", "K", "-1", "1.5M", "12X", "1 K", "0x10", "99999999999999999999", "18014398509481984K"] {
            let error = parse_size(text).unwrap_err();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn formatted_sizes_parse_to_the_same_value() {
        for bytes in [0, 1, 1000, 1024, 1536, 65536, 1 << 20, 3 << 30, 5 << 40, (1 << 20) + 1] {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
        assert_eq!(format_size(64 << 20), "64M");
    }

    #[test]
    fn only_positive_durations_in_known_units_are_parsed() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("3s"), Ok(Duration::from_secs(3)));
        assert_eq!(parse_duration("1h"), Ok(Duration::from_secs(3600)));
        for text in ["", "0", "s", "-1", "1d", "1.2.3", "inf", "1e99"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
