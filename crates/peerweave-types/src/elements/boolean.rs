//! The element type [`Bool`]: a truth value that peers can write.

use core::fmt;
use core::hash::{Hash, Hasher};

/// A truth value as an element. It is one byte: 0 means false, and any other byte means true.
///
/// `bool` cannot be an element: a peer could write a byte that is neither 0 nor 1, which is not a
/// valid `bool`. A `Bool` made from a `bool` is 0 or 1. For the bytes 0 and 1, the reductions
/// `And`, `Or` and `Xor` act as logical operators. For any bytes, `Min` acts as logical and, and
/// `Max` acts as logical or.
///
/// ```
/// use peerweave_types::Bool;
///
/// assert!(Bool::from(true).get());
/// assert_eq!(Bool::from(3 > 4), Bool::FALSE);
/// ```
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Bool(u8);

impl Bool {
    /// The value false: the byte 0.
    pub const FALSE: Self = Self(0);
    /// The value true: the byte 1.
    pub const TRUE: Self = Self(1);

    /// Returns whether the value is true: whether its byte is not 0.
    #[inline]
    pub const fn get(self) -> bool {
        self.0 != 0
    }

    /// Creates a `Bool` from its byte. Every byte is valid.
    #[inline]
    pub const fn from_bits(byte: u8) -> Self {
        Self(byte)
    }

    /// Returns the byte of this value.
    #[inline]
    pub const fn to_bits(self) -> u8 {
        self.0
    }
}

impl From<bool> for Bool {
    #[inline]
    fn from(value: bool) -> Self {
        Self(value.into())
    }
}

impl From<Bool> for bool {
    #[inline]
    fn from(value: Bool) -> Self {
        value.get()
    }
}

/// Compares truth values: two `Bool`s are equal if both are true or both are false, whatever their
/// bytes are.
impl PartialEq for Bool {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Bool {}

impl PartialEq<bool> for Bool {
    #[inline]
    fn eq(&self, other: &bool) -> bool {
        self.get() == *other
    }
}

impl Hash for Bool {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.get().hash(state);
    }
}

impl fmt::Debug for Bool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.get(), f)
    }
}

impl fmt::Display for Bool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.get(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bool_is_true_for_every_byte_but_zero() {
        for byte in 0..=u8::MAX {
            let value = Bool::from_bits(byte);
            assert_eq!((value.get(), value == Bool::TRUE, value == true), (byte != 0, byte != 0, byte != 0));
            assert_eq!(value.to_bits(), byte);
        }
        assert_eq!((Bool::from(true).to_bits(), Bool::from(false).to_bits()), (1, 0));
    }
}
