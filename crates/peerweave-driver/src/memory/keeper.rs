//! Owners of memory, which are created only when a call needs an owner.

use std::any::Any;
use std::sync::Arc;

use crate::Keep;

/// Creates an owner that keeps memory alive, when a call needs such an owner. See
/// [`DeviceBuffer::is_keepable`](crate::DeviceBuffer::is_keepable). Implemented for [`Keep`], and
/// for every `Arc` that can be converted to [`Keep`].
pub trait Keeper {
    /// Returns an owner. The memory stays allocated while the owner lives.
    fn keep(&self) -> Keep;
}

impl Keeper for Keep {
    fn keep(&self) -> Keep {
        Self::clone(self)
    }
}

impl<T: Any + Send + Sync> Keeper for Arc<T> {
    fn keep(&self) -> Keep {
        Self::clone(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Access;

    #[test]
    fn owner_is_cloned_only_when_its_keeper_is_called() {
        let owner = Arc::new(0u8);
        let access = Access::kept_by(0x1000, &owner);
        assert_eq!((access.address(), Arc::strong_count(&owner)), (0x1000, 1));
        let kept = access.keeper().expect("the access has a keeper").keep();
        assert_eq!(Arc::strong_count(&owner), 2);
        let again = Access::kept_by(0x1000, &kept).keeper().expect("the access has a keeper").keep();
        assert_eq!(Arc::strong_count(&owner), 3);
        drop((kept, again));
        assert_eq!(Arc::strong_count(&owner), 1);
    }
}
