//! Compares every collective, element type and reduction, in and out of place, with expected
//! results computed on the host. Shared by the tests and `tools/peerweave-check`.
//!
//! The values are chosen so that every result is exact in every type, whatever the order in which
//! NCCL reduces.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use peerweave_driver::{CudaStream, DeviceMemory};
use peerweave_nccl::{Communicator, Nccl, NcclError, PreMulSum, ReduceOp};
use peerweave_types::{Element, F8E4M3, F8E5M2, Rank, bf16, f16};

/// Time limit of each wait.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A rank of this thread, with the stream of its calls.
pub(crate) struct Member {
    pub(crate) comm: Communicator,
    pub(crate) stream: Arc<CudaStream>,
}

/// The ranks of this thread, and the results of the checks.
pub(crate) struct Check<'a> {
    pub(crate) nccl: Nccl,
    pub(crate) members: &'a [Member],
    /// Whether calls are issued without groups. Only possible for a thread with one rank.
    pub(crate) direct: bool,
    /// Numbers of passed and failed checks for each collective.
    pub(crate) table: BTreeMap<&'static str, (usize, usize)>,
    /// Texts of the first ten failures.
    pub(crate) failures: Vec<String>,
}

/// An element type of the checks.
pub(crate) trait Sample: Element + Default {
    /// Converts a small number. Integer types wrap on overflow.
    fn number(value: i64) -> Self;
    /// Returns a value for data that is only transferred.
    fn pattern(seed: usize) -> Self {
        Self::number((seed % 101) as i64)
    }
    /// Returns whether the element is close to the expected value. Used for divisions that are not
    /// exact.
    fn near(self, value: f64) -> bool;
    /// Largest value for which the sum of eight such values is exact.
    const SMALL: i64 = 4;
}

macro_rules! sample {
    ($($t:ty: $value:ident => $make:expr, $read:expr, $tolerance:expr;)*) => {$(
        impl Sample for $t {
            fn number($value: i64) -> Self {
                $make
            }
            fn near(self, value: f64) -> bool {
                let read: fn($t) -> f64 = $read;
                (read(self) - value).abs() <= $tolerance * value.abs()
            }
        }
    )*};
}

sample! {
    i8: value => value as i8, |x| x as f64, 0.0;
    u8: value => value as u8, |x| x as f64, 0.0;
    i32: value => value as i32, |x| x as f64, 0.0;
    u32: value => value as u32, |x| x as f64, 0.0;
    i64: value => value, |x| x as f64, 0.0;
    u64: value => value as u64, |x| x as f64, 0.0;
    f16: value => f16::from_f64(value as f64), f16::to_f64, 4e-3;
    bf16: value => bf16::from_f64(value as f64), bf16::to_f64, 4e-2;
    f32: value => value as f32, |x| f64::from(x), 1e-6;
    f64: value => value as f64, |x| x, 1e-12;
}

/// Returns the value of an 8-bit float with this number of mantissa bits and this exponent bias.
fn value_of_bits(bits: u8, mantissa_bits: u32, bias: i32) -> f64 {
    let mantissa = f64::from(bits & ((1 << mantissa_bits) - 1)) / f64::from(1u32 << mantissa_bits);
    let exponent = i32::from(bits & 0x7f) >> mantissa_bits;
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    sign * if exponent == 0 { mantissa * 2f64.powi(1 - bias) } else { (1.0 + mantissa) * 2f64.powi(exponent - bias) }
}

macro_rules! sample_8_bits {
    ($($t:ty: $mantissa_bits:literal, $bias:literal;)*) => {$(
        impl Sample for $t {
            fn number(value: i64) -> Self {
                let found = (0..0x7c).find(|bits| value_of_bits(*bits, $mantissa_bits, $bias) == value as f64);
                Self::from_bits(found.expect("the values of the checks are exact"))
            }
            fn pattern(seed: usize) -> Self {
                Self::from_bits((seed * 37 % 256) as u8)
            }
            fn near(self, value: f64) -> bool {
                (value_of_bits(self.to_bits(), $mantissa_bits, $bias) - value).abs() <= 0.5 * value.abs()
            }
            const SMALL: i64 = 1;
        }
    )*};
}

sample_8_bits! {
    F8E4M3: 3, 7;
    F8E5M2: 2, 15;
}

/// Returns the element at `index` that a rank contributes to a reduction over `n` ranks.
fn given<T: Sample>(op: &Op<'_, T>, n: usize, rank: usize, index: usize) -> i64 {
    let mixed = (rank * 7 + index * 3 + rank * index) as i64;
    match op {
        // Powers of two, so that products are exact.
        Op::Plain(ReduceOp::Prod) => 1 + mixed % 2,
        // Every rank contributes the same value, so each partial sum is exact, also after the
        // division.
        Op::Plain(ReduceOp::Avg) if T::SMALL == 1 => (index % 3) as i64,
        Op::Plain(ReduceOp::Avg) => n as i64 * (mixed % 3),
        _ => mixed % (T::SMALL + 1),
    }
}

/// A reduction of a check.
pub(crate) enum Op<'a, T> {
    Plain(ReduceOp),
    /// A sum of elements multiplied by 2, with one [`PreMulSum`] for each member.
    Scaled(&'a [PreMulSum<T>]),
}

impl<T> Clone for Op<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Op<'_, T> {}

/// Returns the expected element at `index` after a reduction over `n` ranks.
fn reduced<T: Sample>(op: &Op<'_, T>, n: usize, index: usize) -> i64 {
    let values = (0..n).map(|rank| given(op, n, rank, index));
    match op {
        Op::Plain(ReduceOp::Sum) => values.sum(),
        Op::Plain(ReduceOp::Prod) => values.product(),
        Op::Plain(ReduceOp::Min) => values.min().unwrap_or(0),
        Op::Plain(ReduceOp::Max) => values.max().unwrap_or(0),
        Op::Plain(ReduceOp::Avg) => values.sum::<i64>() / n as i64,
        Op::Plain(other) => unreachable!("{other} is not a reduction of NCCL"),
        Op::Scaled(_) => values.map(|value| 2 * value).sum(),
    }
}

/// Issues a call for each member, in one group or without a group.
macro_rules! each {
    ($check:ident, $iterator:expr, |$index:pat_param, $member:ident, $arguments:pat_param| $method:ident($($argument:expr),*)) => {
        if $check.direct {
            for (($index, $member), $arguments) in $check.members.iter().enumerate().zip($iterator) {
                $member.comm.$method(&$member.stream, $($argument),*)?;
            }
            Ok(())
        } else {
            $check.nccl.group(|group| {
                for (($index, $member), $arguments) in $check.members.iter().enumerate().zip($iterator) {
                    group.$method(&$member.comm, &$member.stream, $($argument),*)?;
                }
                Ok(())
            })
        }
    };
}

/// Issues a reduction for each member, like `each`.
macro_rules! each_reduced {
    ($check:ident, $op:ident, $iterator:expr, |$member:ident, $arguments:pat_param| $method:ident([$($before:expr),*], [$($after:expr),*])) => {
        match $op {
            Op::Plain(op) => each!($check, $iterator, |_, $member, $arguments| $method($($before,)* op $(, $after)*)),
            Op::Scaled(ops) => each!($check, $iterator, |index, $member, $arguments| $method($($before,)* &ops[index] $(, $after)*)),
        }
    };
}

type Buffers<T> = Vec<DeviceMemory<T>>;

impl<'a> Check<'a> {
    /// Creates the checks of the ranks of this thread.
    pub(crate) fn new(nccl: Nccl, members: &'a [Member], direct: bool) -> Self {
        Self { nccl, members, direct, table: BTreeMap::new(), failures: Vec::new() }
    }

    /// Returns the numbers of passed and failed checks.
    pub(crate) fn totals(&self) -> (usize, usize) {
        self.table.values().fold((0, 0), |(passed, failed), (more, worse)| (passed + more, failed + worse))
    }

    fn n(&self) -> usize {
        self.members[0].comm.n_ranks()
    }

    /// Creates a buffer for each member. The buffer has `len(rank)` elements with the values
    /// `value(rank, index)`.
    fn buffers<T: Sample>(
        &self,
        len: impl Fn(usize) -> usize,
        value: impl Fn(usize, usize) -> T,
    ) -> Result<Buffers<T>, NcclError> {
        let buffer = |member: &Member| {
            let rank = member.comm.rank().index();
            let values: Vec<T> = (0..len(rank)).map(|index| value(rank, index)).collect();
            Ok(DeviceMemory::from_slice(&member.stream, &values)?)
        };
        self.members.iter().map(buffer).collect()
    }

    fn blank<T: Sample>(&self, len: impl Fn(usize) -> usize) -> Result<Buffers<T>, NcclError> {
        self.buffers(len, |_, _| T::default())
    }

    /// Waits for the work of all members, compares the results with `expected`, and counts the
    /// checks in the table.
    fn verify<T: Sample>(
        &mut self,
        what: &'static str,
        detail: &str,
        issued: Result<(), NcclError>,
        found: &Buffers<T>,
        expected: impl Fn(usize, usize) -> Option<T>,
        close: Option<&dyn Fn(usize, usize) -> f64>,
    ) -> Result<(), NcclError> {
        issued?;
        for (member, buffer) in self.members.iter().zip(found) {
            member.comm.wait(&member.stream, DEADLINE)?;
            let rank = member.comm.rank().index();
            let values = buffer.to_vec(&member.stream)?;
            let is_wrong = |(index, value): &(usize, &T)| match (expected(rank, *index), close) {
                (None, _) => false,
                (Some(_), Some(close)) => !value.near(close(rank, *index)),
                (Some(expected), None) => expected != **value,
            };
            let wrong = values.iter().enumerate().find(is_wrong);
            let entry = self.table.entry(what).or_default();
            match wrong {
                None => entry.0 += 1,
                Some((index, value)) => {
                    entry.1 += 1;
                    if self.failures.len() < 10 {
                        let expected = expected(rank, index);
                        let kind = T::DTYPE;
                        self.failures.push(format!(
                            "{what} {detail} {kind}: rank {rank}, element {index}: {value:?}, expected {expected:?}"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes all checks with all types, with `count` elements of each rank.
    pub(crate) fn all(&mut self, count: usize) -> Result<(), NcclError> {
        self.of_type::<i8>(count)?;
        self.of_type::<u8>(count)?;
        self.of_type::<i32>(count)?;
        self.of_type::<u32>(count)?;
        self.of_type::<i64>(count)?;
        self.of_type::<u64>(count)?;
        self.of_type::<f16>(count)?;
        self.of_type::<bf16>(count)?;
        self.of_type::<f32>(count)?;
        self.of_type::<f64>(count)?;
        self.of_type::<F8E4M3>(count)?;
        self.of_type::<F8E5M2>(count)
    }

    /// Checks every collective with one type. Checks reductions only if NCCL supports the type.
    pub(crate) fn of_type<T: Sample>(&mut self, count: usize) -> Result<(), NcclError> {
        if T::SMALL > 1 || self.nccl.version().at_least(peerweave_nccl::Version::new(2, 24, 3)) {
            for op in Nccl::REDUCTIONS {
                self.reductions::<T>(op.name(), Op::Plain(op), count)?;
            }
            let host = self.members.iter().map(|member| PreMulSum::new(&member.comm, T::number(2)));
            let host = host.collect::<Result<Vec<_>, _>>()?;
            self.reductions("premulsum", Op::Scaled(&host), count)?;
            let on_device = |member: &Member| {
                PreMulSum::from_device(&member.comm, DeviceMemory::from_slice(&member.stream, &[T::number(2)])?)
            };
            let device = self.members.iter().map(on_device).collect::<Result<Vec<_>, NcclError>>()?;
            self.reductions("premulsum (device)", Op::Scaled(&device), count)?;
        }
        self.movements::<T>(count)
    }

    fn reductions<T: Sample>(&mut self, name: &str, op: Op<'_, T>, count: usize) -> Result<(), NcclError> {
        let n = self.n();
        let value = |rank: usize, index: usize| T::number(given(&op, n, rank, index));
        let result = |index: usize| T::number(reduced(&op, n, index));
        // NCCL multiplies by 1/n, which is exact only if n is a power of two.
        let divides = matches!(op, Op::Plain(ReduceOp::Avg)) && !n.is_power_of_two();
        let number = |index: usize| reduced(&op, n, index) as f64;
        let everywhere = |_: usize, index: usize| number(index);
        let close: Option<&dyn Fn(usize, usize) -> f64> = if divides { Some(&everywhere) } else { None };

        let (send, mut recv) = (self.buffers(|_| count, value)?, self.blank::<T>(|_| count)?);
        let issued = each_reduced!(self, op, send.iter().zip(&mut recv), |member, (send, recv)| all_reduce([send, recv], []));
        self.verify("all_reduce", name, issued, &recv, |_, index| Some(result(index)), close)?;
        let mut both = self.buffers(|_| count, value)?;
        let issued = each_reduced!(self, op, &mut both, |member, buffer| all_reduce_in_place([buffer], []));
        self.verify("all_reduce_in_place", name, issued, &both, |_, index| Some(result(index)), close)?;

        let root = n - 1;
        let mut recv = self.blank::<T>(|_| count)?;
        let issued = each_reduced!(self, op, send.iter().zip(&mut recv), |member, (send, recv)| reduce(
            [send, (member.comm.rank().index() == root).then_some(recv as _)],
            [Rank::new(root as u32)]
        ));
        let of_root = |rank: usize, index: usize| if rank == root { number(index) } else { 0.0 };
        let expected = |rank: usize, index: usize| Some(if rank == root { result(index) } else { T::default() });
        self.verify("reduce", name, issued, &recv, expected, divides.then_some(&of_root))?;
        let mut both = self.buffers(|_| count, value)?;
        let issued = each_reduced!(self, op, &mut both, |member, buffer| reduce_in_place([buffer], [Rank::new(root as u32)]));
        self.verify("reduce_in_place", name, issued, &both, |rank, index| (rank == root).then(|| result(index)), close)?;

        let (send, mut recv) = (self.buffers(|_| n * count, value)?, self.blank::<T>(|_| count)?);
        let issued = each_reduced!(self, op, send.iter().zip(&mut recv), |member, (send, recv)| reduce_scatter([send, recv], []));
        let mine = |rank: usize, index: usize| Some(result(rank * count + index));
        self.verify("reduce_scatter", name, issued, &recv, mine, divides.then_some(&|rank, index| number(rank * count + index)))?;
        let mut both = self.buffers(|_| n * count, value)?;
        let issued = each_reduced!(self, op, &mut both, |member, buffer| reduce_scatter_in_place([buffer], []));
        let part = |rank: usize, index: usize| (index / count == rank).then(|| result(index));
        self.verify("reduce_scatter_in_place", name, issued, &both, part, close)
    }

    fn movements<T: Sample>(&mut self, count: usize) -> Result<(), NcclError> {
        let (n, root) = (self.n(), self.n() / 2);
        let value = |rank: usize, index: usize| T::pattern(rank * 31 + index * 7 + 1);
        // The elements that rank `from` sends to rank `to`.
        let addressed = |from: usize, to: usize, index: usize| T::pattern(from * 17 + to * 29 + index * 3 + 1);

        let (send, mut recv) = (self.buffers(|_| count, value)?, self.blank::<T>(|_| count)?);
        let issued = each!(self, send.iter().zip(&mut recv), |_, member, (send, recv)| broadcast(
            (member.comm.rank().index() == root).then_some(send as _),
            recv,
            Rank::new(root as u32)
        ));
        self.verify("broadcast", "", issued, &recv, |_, index| Some(value(root, index)), None)?;
        let mut both = self.buffers(|_| count, value)?;
        let issued = each!(self, &mut both, |_, member, buffer| broadcast_in_place(buffer, Rank::new(root as u32)));
        self.verify("broadcast_in_place", "", issued, &both, |_, index| Some(value(root, index)), None)?;

        let mut recv = self.blank::<T>(|_| n * count)?;
        let issued = each!(self, send.iter().zip(&mut recv), |_, member, (send, recv)| all_gather(send, recv));
        let gathered = |_: usize, index: usize| Some(value(index / count, index % count));
        self.verify("all_gather", "", issued, &recv, gathered, None)?;
        let mut both = self.buffers(
            |_| n * count,
            |rank, index| {
                if index / count == rank { value(rank, index % count) } else { T::default() }
            },
        )?;
        let issued = each!(self, &mut both, |_, member, buffer| all_gather_in_place(buffer));
        self.verify("all_gather_in_place", "", issued, &both, gathered, None)?;

        let send_all = self.buffers(|_| n * count, |rank, index| addressed(rank, index / count, index % count))?;
        let mut recv = self.blank::<T>(|_| n * count)?;
        let issued = each!(self, send_all.iter().zip(&mut recv), |_, member, (send, recv)| all_to_all(send, recv));
        self.verify("all_to_all", "", issued, &recv, |rank, index| Some(addressed(index / count, rank, index % count)), None)?;

        let mut recv = self.blank::<T>(|rank| if rank == root { n * count } else { 0 })?;
        let issued = each!(self, send.iter().zip(&mut recv), |_, member, (send, recv)| gather(
            send,
            (member.comm.rank().index() == root).then_some(recv as _),
            Rank::new(root as u32)
        ));
        self.verify("gather", "", issued, &recv, gathered, None)?;
        let mut both = self.buffers(
            |rank| if rank == root { n * count } else { count },
            |rank, index| match rank == root {
                true if index / count != root => T::default(),
                true => value(root, index % count),
                false => value(rank, index),
            },
        )?;
        let issued = each!(self, &mut both, |_, member, buffer| gather_in_place(buffer, Rank::new(root as u32)));
        self.verify(
            "gather_in_place",
            "",
            issued,
            &both,
            |rank, index| if rank == root { gathered(0, index) } else { None },
            None,
        )?;

        let mut recv = self.blank::<T>(|_| count)?;
        let issued = each!(self, send_all.iter().zip(&mut recv), |_, member, (send, recv)| scatter(
            (member.comm.rank().index() == root).then_some(send as _),
            recv,
            Rank::new(root as u32)
        ));
        self.verify("scatter", "", issued, &recv, |rank, index| Some(addressed(root, rank, index)), None)?;
        let mut both = self.buffers(
            |rank| if rank == root { n * count } else { count },
            |rank, index| if rank == root { addressed(root, index / count, index % count) } else { T::default() },
        )?;
        let issued = each!(self, &mut both, |_, member, buffer| scatter_in_place(buffer, Rank::new(root as u32)));
        self.verify(
            "scatter_in_place",
            "",
            issued,
            &both,
            |rank, index| {
                Some(if rank == root { addressed(root, index / count, index % count) } else { addressed(root, rank, index) })
            },
            None,
        )?;
        self.uneven::<T>(count)
    }

    /// Checks calls with a different number of elements for each rank, including zero, and a ring
    /// of sends and receives.
    fn uneven<T: Sample>(&mut self, count: usize) -> Result<(), NcclError> {
        let n = self.n();
        let sent = |from: usize, to: usize| (from * 2 + to * 3) % 4 * count / 3;
        let addressed = |from: usize, to: usize, index: usize| T::pattern(from * 17 + to * 29 + index * 3 + 1);
        let send_counts = |rank: usize| (0..n).map(|to| sent(rank, to)).collect::<Vec<_>>();
        let recv_counts = |rank: usize| (0..n).map(|from| sent(from, rank)).collect::<Vec<_>>();
        // The part that contains an element, and the element's position in that part.
        let place = |counts: &[usize], mut index: usize| {
            let mut part = 0;
            while index >= counts[part] {
                index -= counts[part];
                part += 1;
            }
            (part, index)
        };
        let send = self.buffers(
            |rank| send_counts(rank).iter().sum(),
            |rank, index| {
                let (to, index) = place(&send_counts(rank), index);
                addressed(rank, to, index)
            },
        )?;
        let mut recv = self.blank::<T>(|rank| recv_counts(rank).iter().sum())?;
        let issued = each!(self, send.iter().zip(&mut recv), |_, member, (send, recv)| all_to_all_v(
            send,
            &send_counts(member.comm.rank().index()),
            recv,
            &recv_counts(member.comm.rank().index())
        ));
        let expected = |rank: usize, index: usize| {
            let (from, index) = place(&recv_counts(rank), index);
            Some(addressed(from, rank, index))
        };
        self.verify("all_to_all_v", "", issued, &recv, expected, None)?;

        let counts: Vec<usize> = (0..n).map(|rank| (rank + 1) % 3 * count / 2).collect();
        let send = self.buffers(|rank| counts[rank], |rank, index| addressed(rank, 0, index))?;
        let mut recv = self.blank::<T>(|_| counts.iter().sum())?;
        let issued = each!(self, send.iter().zip(&mut recv), |_, member, (send, recv)| all_gather_v(send, recv, &counts));
        let expected = |_: usize, index: usize| {
            let (from, index) = place(&counts, index);
            Some(addressed(from, 0, index))
        };
        self.verify("all_gather_v", "", issued, &recv, expected, None)?;

        let send = self.buffers(|_| count, |rank, index| addressed(rank, 1, index))?;
        let mut recv = self.blank::<T>(|_| count)?;
        let issued = self.nccl.group(|group| {
            for ((member, send), recv) in self.members.iter().zip(&send).zip(&mut recv) {
                let rank = member.comm.rank().index();
                group.send(&member.comm, &member.stream, send, Rank::new(((rank + 1) % n) as u32))?;
                group.recv(&member.comm, &member.stream, recv, Rank::new(((rank + n - 1) % n) as u32))?;
            }
            Ok(())
        });
        self.verify("send and recv", "", issued, &recv, |rank, index| Some(addressed((rank + n - 1) % n, 1, index)), None)
    }
}
