//! The distribution of a team's members over several hosts.

use peerweave_types::{Pe, Rank};

use crate::collective::Collectives;

/// A team with members on several hosts: the members, grouped by host, and the position of this PE
/// in these groups.
pub(crate) struct Span {
    /// The ranks of each host in ascending order. The hosts are in the order of their first ranks.
    hosts: Box<[Box<[usize]>]>,
    /// Index in `hosts` of the host on which this PE runs.
    here: usize,
    /// Index of this PE's rank in the list of ranks on its host, `hosts[here]`.
    place: usize,
    /// The collective kernels of the members on this host. `None` if this host has more than 8
    /// members, if this PE does not map the memory of all of them, or if the heap has no room for
    /// the staging memory.
    pub(crate) inside: Option<Collectives>,
}

impl Span {
    /// Groups the members of a team by host. `host_of` returns the host of a PE. `me` is the rank
    /// of this PE. `inside` has the kernels for the members on this host.
    pub(crate) fn new(members: &[Pe], me: usize, host_of: impl Fn(Pe) -> u32, inside: Option<Collectives>) -> Self {
        let mut hosts: Vec<(u32, Vec<usize>)> = Vec::new();
        for (rank, pe) in members.iter().enumerate() {
            let host = host_of(*pe);
            match hosts.iter_mut().find(|(other, _)| *other == host) {
                Some((_, ranks)) => ranks.push(rank),
                None => hosts.push((host, vec![rank])),
            }
        }
        let here = hosts.iter().position(|(_, ranks)| ranks.contains(&me));
        let here = here.unwrap_or_else(|| panic!("peerweave-cuda bug: rank {me} is on no host"));
        let place = hosts[here].1.iter().take_while(|rank| **rank != me).count();
        Self { hosts: hosts.into_iter().map(|(_, ranks)| ranks.into()).collect(), here, place, inside }
    }

    /// Returns the number of hosts on which the team has members.
    pub(crate) fn n_hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Returns whether at least one host has several ranks of the team.
    pub(crate) fn shares_hosts(&self) -> bool {
        self.hosts.iter().any(|ranks| ranks.len() > 1)
    }

    /// Returns the index of the host on which this PE runs.
    pub(crate) fn here(&self) -> usize {
        self.here
    }

    /// Returns the index of this PE's rank in the list of the team's ranks on this host.
    pub(crate) fn place(&self) -> usize {
        self.place
    }

    /// Returns the index and the ranks of each host except the host of this PE.
    pub(crate) fn others(&self) -> impl Iterator<Item = (usize, &[usize])> {
        self.hosts.iter().enumerate().filter(|(host, _)| *host != self.here).map(|(host, ranks)| (host, &**ranks))
    }

    /// Returns the number of ranks on each host. Returns `None` if hosts have different numbers of
    /// ranks, or if each host has only one rank.
    pub(crate) fn rails(&self) -> Option<usize> {
        let rails = self.local().len();
        (rails > 1 && self.hosts.iter().all(|ranks| ranks.len() == rails)).then_some(rails)
    }

    /// Returns the rank at position `position` among the ranks of host `host`.
    pub(crate) fn at(&self, host: usize, position: usize) -> usize {
        self.hosts[host][position]
    }

    /// Returns the other ranks of this PE's rail, each with the index of its host. A rail has one
    /// rank of each host: the ranks at the same position within their hosts. Every host must have a
    /// rank at this PE's position.
    pub(crate) fn rail(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.others().map(|(host, ranks)| (host, ranks[self.place]))
    }

    /// Returns the ranks of the team on the host of this PE.
    pub(crate) fn local(&self) -> &[usize] {
        &self.hosts[self.here]
    }

    /// Converts a rank of the team to a position among the members on this host. Returns `None` for
    /// a rank on another host.
    pub(crate) fn inside_rank(&self, rank: usize) -> Option<Rank> {
        self.local().iter().position(|local| *local == rank).map(|at| Rank::new(at as u32))
    }

    /// Returns the first rank of each host.
    pub(crate) fn leaders(&self) -> impl Iterator<Item = usize> + '_ {
        self.hosts.iter().map(|ranks| ranks[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn team_members_are_grouped_by_host_in_the_order_of_ranks() {
        let members = [3, 0, 2, 1].map(Pe::new);
        let span = Span::new(&members, 2, |pe| pe.get() / 2, None);
        assert_eq!(span.hosts.iter().map(|ranks| ranks.to_vec()).collect::<Vec<_>>(), [vec![0, 2], vec![1, 3]]);
        assert_eq!((span.local(), span.n_hosts()), (&[0, 2][..], 2));
        assert_eq!(span.leaders().collect::<Vec<_>>(), [0, 1]);
        assert_eq!((span.inside_rank(2), span.inside_rank(1)), (Some(Rank::new(1)), None));
        assert_eq!((span.here(), span.place(), span.rails()), (0, 1, Some(2)));
        assert_eq!(span.rail().collect::<Vec<_>>(), [(1, 3)]);
        let alone = Span::new(&members, 3, |pe| u32::from(pe.get() == 1), None);
        assert_eq!((alone.local(), alone.place(), alone.rails()), (&[3][..], 0, None));
    }
}
