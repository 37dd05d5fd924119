//! Teams that are strided subsets of a parent team, as in OpenSHMEM and NVSHMEM.

/// A team of `size` ranks of a parent team: `start`, `start + stride`, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct TeamShape {
    /// The parent rank of the first member. A parent rank is a rank in the parent team.
    pub start: u32,
    /// Distance between the parent ranks of consecutive members. The distance can be negative. It
    /// must not be 0 if there are two or more members.
    pub stride: i32,
    /// Number of members of the team.
    pub size: u32,
}

impl TeamShape {
    /// Returns the rank that member `index` has in the parent team. Returns `None` if that rank is
    /// negative or exceeds `u32`, or if `index >= size`.
    pub const fn member(&self, index: u32) -> Option<u32> {
        if index >= self.size {
            return None;
        }
        let rank = self.start as i64 + self.stride as i64 * index as i64;
        if rank < 0 || rank > u32::MAX as i64 { None } else { Some(rank as u32) }
    }

    /// Returns whether this shape is valid in a parent team of `parent_size` ranks: the team is not
    /// empty, and its members are distinct ranks of the parent team.
    pub const fn fits(&self, parent_size: u32) -> bool {
        if self.size == 0 || self.start >= parent_size || (self.stride == 0 && self.size > 1) {
            return false;
        }
        match self.member(self.size - 1) {
            Some(last) => last < parent_size,
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn team_members_are_correct_for_positive_and_negative_stride() {
        let odd = TeamShape { start: 1, stride: 2, size: 3 };
        assert!(odd.fits(6) && !odd.fits(5));
        assert_eq!([odd.member(0), odd.member(2), odd.member(3)], [Some(1), Some(5), None]);
        let back = TeamShape { start: 3, stride: -1, size: 4 };
        assert!(back.fits(4));
        assert_eq!(back.member(3), Some(0));
        assert!(!TeamShape { start: 3, stride: -1, size: 5 }.fits(8));
    }

    #[test]
    fn team_shape_is_invalid_if_empty_repeating_or_out_of_range() {
        assert!(!TeamShape { start: 0, stride: 1, size: 0 }.fits(4));
        assert!(!TeamShape { start: 0, stride: 0, size: 2 }.fits(4));
        assert!(TeamShape { start: 3, stride: 0, size: 1 }.fits(4));
        assert!(!TeamShape { start: 4, stride: 1, size: 1 }.fits(4));
        assert!(!TeamShape { start: u32::MAX, stride: i32::MAX, size: u32::MAX }.fits(u32::MAX));
    }
}
