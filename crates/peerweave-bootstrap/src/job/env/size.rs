//! Parses sizes in bytes, such as `64M`, in environment variables, command-line options and route
//! tables.

/// Error of [`parse_bytes`]: the reason why a text is not a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotBytes {
    /// The text does not have the form that [`parse_bytes`] expects.
    Form,
    /// The number is larger than [`u64::MAX`].
    Range,
}

/// Parses a number of bytes: decimal digits, then an optional suffix, then optionally `B` or `iB`.
/// The suffixes `K`, `M`, `G` and `T`, in upper or lower case, are powers of 1024.
///
/// # Errors
/// [`NotBytes::Form`] if the text has another form. [`NotBytes::Range`] if the number does not fit
/// in a `u64`.
///
/// # Examples
/// ```
/// use peerweave_bootstrap::env::{NotBytes, parse_bytes};
///
/// assert_eq!(parse_bytes("64M"), Ok(64 << 20));
/// assert_eq!(parse_bytes("1KiB"), Ok(1024));
/// assert_eq!(parse_bytes("1.5M"), Err(NotBytes::Form));
/// assert_eq!(parse_bytes("18014398509481984K"), Err(NotBytes::Range));
/// ```
pub fn parse_bytes(text: &str) -> Result<u64, NotBytes> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(NotBytes::Form),
    };
    if digits.is_empty() {
        return Err(NotBytes::Form);
    }
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift)).ok_or(NotBytes::Range)
}
