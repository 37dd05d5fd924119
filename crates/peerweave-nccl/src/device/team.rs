//! Teams: sets of ranks at equal strides. Kernels take teams as parameters.
//!
//! This module only computes indices, like NCCL's headers for kernels. `device_comm.rs` queries
//! NCCL for the LSA, rail and fabric teams.
//!
//! Invariant: a team is created for a given number of ranks, and every rank of the team is less
//! than this number. `to_raw` converts a team for a call on a communicator, and checks that the
//! communicator has all ranks of the team.

use std::ffi::c_int;

use crate::Rank;
use crate::library::error::{MisuseKind, NcclError};
use crate::sys::ncclTeam_t;

/// A team: a set of ranks of one communicator, at equal strides, that includes this rank.
///
/// ```
/// use peerweave_nccl::{DeviceTeam, Rank};
///
/// // Rank 5 of 8, on machines of four.
/// let world = DeviceTeam::world(8, Rank::new(5));
/// let machine = world.inner(4).expect("8 is a multiple of 4");
/// assert_eq!((machine.ranks(), machine.index()), (4, 1));
/// assert_eq!(machine.rank_of(0), Some(Rank::new(4)));
/// let rail = world.outer(4).expect("8 is a multiple of 4");
/// assert_eq!((rail.rank_of(0), rail.rank_of(1)), (Some(Rank::new(1)), Some(Rank::new(5))));
/// assert_eq!(rail.index_of(Rank::new(4)), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceTeam {
    ranks: usize,
    index: usize,
    stride: usize,
    /// Rank, in the communicator, of the team member with index 0.
    first: usize,
}

impl DeviceTeam {
    /// Returns the team that consists of all ranks of a communicator with `ranks` ranks. `rank` is
    /// the caller's rank.
    ///
    /// # Panics
    /// Panics if `rank` is not less than `ranks`.
    pub fn world(ranks: usize, rank: Rank) -> Self {
        let index = rank.index();
        assert!(index < ranks, "DeviceTeam::world: rank is {index}, expected less than {ranks} (the number of ranks)");
        Self { ranks, index, stride: 1, first: 0 }
    }

    /// Converts NCCL's struct of a team. `rank` is the caller's rank in the communicator. Returns
    /// `None` if the struct is invalid.
    pub(crate) fn from_raw(raw: ncclTeam_t, rank: Rank) -> Option<Self> {
        let ranks = usize::try_from(raw.nRanks).ok()?;
        let index = usize::try_from(raw.rank).ok()?;
        let stride = usize::try_from(raw.stride).ok().filter(|stride| *stride > 0)?;
        let first = rank.index().checked_sub(index.checked_mul(stride)?)?;
        (index < ranks).then_some(Self { ranks, index, stride, first })
    }

    /// Converts the team to NCCL's struct, for a communicator of `n_ranks` ranks in which the
    /// caller is `rank`. Checks the numbers, because NCCL does not check them.
    ///
    /// # Errors
    /// [`NcclError::Misuse`] for a team that was created for a different rank, or that has ranks
    /// that the communicator does not have.
    pub(crate) fn to_raw(self, call: &'static str, rank: Rank, n_ranks: usize) -> Result<ncclTeam_t, NcclError> {
        let own = self.rank_of(self.index);
        if own != Some(rank) {
            let found = own.map_or(i64::MAX, |own| own.get().into());
            let (what, expected) = ("the rank for which the team was created", "the caller's rank in the communicator");
            return Err(NcclError::misuse(call, MisuseKind::Value { what, found, expected }));
        }
        let last = self.first + (self.ranks - 1) * self.stride;
        let found = Rank::new(u32::try_from(last).unwrap_or(u32::MAX));
        match (c_int::try_from(self.ranks), c_int::try_from(self.index), c_int::try_from(self.stride)) {
            (Ok(n), Ok(index), Ok(stride)) if last < n_ranks => Ok(ncclTeam_t { nRanks: n, rank: index, stride }),
            _ => Err(NcclError::misuse(call, MisuseKind::Rank { what: "the last rank of the team", found, ranks: n_ranks })),
        }
    }

    /// Returns the number of ranks in the team.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Returns this rank's index in the team.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the difference between the communicator ranks of two consecutive team members.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Returns the communicator rank of the team member with this index. Returns `None` if the team
    /// has no such member.
    pub fn rank_of(&self, index: usize) -> Option<Rank> {
        let rank = (index < self.ranks).then(|| self.first + index * self.stride)?;
        u32::try_from(rank).ok().map(Rank::new)
    }

    /// Returns the team index of a communicator rank, or `None` if the rank is not in the team.
    pub fn index_of(&self, rank: Rank) -> Option<usize> {
        let distance = rank.index().checked_sub(self.first)?;
        (distance.is_multiple_of(self.stride) && distance / self.stride < self.ranks).then(|| distance / self.stride)
    }

    /// Divides the team into blocks of `size` consecutive members, and returns the block that
    /// contains this rank. Returns `None` if `size` does not divide the number of ranks in the
    /// team.
    pub fn inner(&self, size: usize) -> Option<Self> {
        self.is_blocks_of(size).then(|| {
            let block = self.index - self.index % size;
            Self { ranks: size, index: self.index % size, stride: self.stride, first: self.first + block * self.stride }
        })
    }

    /// Divides the team into blocks of `size` consecutive members. Returns the team of the ranks
    /// that have the same index in their blocks as this rank has in its own block. Returns `None`
    /// if `size` does not divide the number of ranks in the team.
    pub fn outer(&self, size: usize) -> Option<Self> {
        self.is_blocks_of(size).then(|| Self {
            ranks: self.ranks / size,
            index: self.index / size,
            stride: self.stride * size,
            first: self.first + self.index % size * self.stride,
        })
    }

    /// Returns the ranks that are in this team and not in `other`, in ascending order.
    pub fn without(self, other: Self) -> impl Iterator<Item = Rank> {
        (0..self.ranks).filter_map(move |index| self.rank_of(index)).filter(move |rank| other.index_of(*rank).is_none())
    }

    fn is_blocks_of(&self, size: usize) -> bool {
        size > 0 && self.ranks.is_multiple_of(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_and_outer_teams_share_exactly_one_rank() {
        for rank in (0..24).map(Rank::new) {
            let world = DeviceTeam::world(24, rank);
            let (inner, outer) = (
                world.inner(6).expect("the size divides the number of ranks"),
                world.outer(6).expect("the size divides the number of ranks"),
            );
            assert_eq!((inner.rank_of(inner.index()), outer.rank_of(outer.index())), (Some(rank), Some(rank)));
            assert_eq!((inner.ranks(), outer.ranks(), outer.stride()), (6, 4, 6));
            let both: Vec<_> = (0..24)
                .map(Rank::new)
                .filter(|other| inner.index_of(*other).is_some() && outer.index_of(*other).is_some())
                .collect();
            assert_eq!(both, [rank], "a block and a rail have exactly one rank in common");
            let second = outer.inner(2).expect("the size divides the number of ranks");
            assert_eq!(second.stride(), 6);
            assert_eq!(second.rank_of(second.index()), Some(rank));
        }
    }

    #[test]
    fn block_size_that_does_not_divide_the_team_yields_no_team() {
        let world = DeviceTeam::world(6, Rank::new(0));
        assert_eq!((world.inner(4), world.outer(4), world.inner(0)), (None, None, None));
    }

    #[test]
    fn team_difference_excludes_the_ranks_of_the_second_team() {
        let world = DeviceTeam::world(8, Rank::new(5));
        let rail = world.outer(4).expect("the size divides the number of ranks");
        assert_eq!(world.without(rail).collect::<Vec<_>>(), [0, 2, 3, 4, 6, 7].map(Rank::new));
        assert_eq!(rail.without(world).count(), 0);
    }

    #[test]
    fn team_of_another_communicator_is_refused() {
        let refused = |team: DeviceTeam, rank, n_ranks| {
            team.to_raw("test", rank, n_ranks).expect_err("the team belongs to another communicator").to_string()
        };
        let world = DeviceTeam::world(8, Rank::new(5));
        assert!(
            world.to_raw("test", Rank::new(5), 8).is_ok() && world.to_raw("test", Rank::new(5), 9).is_ok(),
            "a team may contain only some ranks of the communicator"
        );
        assert_eq!(
            refused(world, Rank::new(4), 8),
            "test: the rank for which the team was created is 5, expected the caller's rank in the communicator"
        );
        assert_eq!(
            refused(world, Rank::new(5), 6),
            "test: the last rank of the team is 7, expected less than 6 (the number of ranks)"
        );
        assert_eq!(
            refused(world.outer(4).expect("the size divides the number of ranks"), Rank::new(5), 5),
            "test: the last rank of the team is 5, expected less than 5 (the number of ranks)"
        );
        let huge = DeviceTeam::world(usize::MAX, Rank::new(5));
        assert_eq!(
            refused(huge, Rank::new(5), 8),
            format!("test: the last rank of the team is {}, expected less than 8 (the number of ranks)", u32::MAX)
        );
        assert!(huge.to_raw("test", Rank::new(5), usize::MAX).is_err(), "NCCL's integers are too small for the team");
    }

    #[test]
    fn raw_team_converts_to_a_device_team_only_if_valid() {
        let raw = ncclTeam_t { nRanks: 2, rank: 1, stride: 4 };
        let team = DeviceTeam::from_raw(raw, Rank::new(6)).expect("the struct is valid");
        assert_eq!(team.to_raw("test", Rank::new(6), 7).expect("the team belongs to this communicator"), raw);
        assert_eq!((team.rank_of(0), team.rank_of(1), team.rank_of(2)), (Some(Rank::new(2)), Some(Rank::new(6)), None));
        for (n_ranks, rank, stride) in [(2, 2, 4), (-1, 0, 1), (2, 1, 0), (2, 1, 7), (2, -1, 1)] {
            assert_eq!(DeviceTeam::from_raw(ncclTeam_t { nRanks: n_ranks, rank, stride }, Rank::new(6)), None);
        }
    }
}
