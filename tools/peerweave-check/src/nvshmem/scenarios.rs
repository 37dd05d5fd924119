//! Checks every operation for every element type on every kind of team. Also checks that incorrect
//! calls are refused with an error.

use std::collections::BTreeMap;
use std::sync::Arc;

use half::{bf16, f16};
use peerweave_bootstrap::Rendezvous;
use peerweave_driver::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use peerweave_driver::{CudaStream, DeviceMemory};
use peerweave_nvshmem::{Context, MisuseKind, NvshmemError, Signal, Strides, SymmetricBuffer, Team, TeamConfig, TeamId};
use peerweave_types::{AtomicInteger, Compare, F8E4M3, F8E5M2, Pe, Rank, ReduceOp, SignalOp};

use crate::Failure;
use crate::nvshmem::oracle::{Reduce, Sample};

/// Number of elements in most transfers. The number is odd, so that vector instructions cannot move
/// all elements.
const COUNT: usize = 1003;

/// Counts the checks of one PE, and records the failed checks.
pub(crate) struct Checks<'a> {
    pub(crate) context: &'a Context,
    pub(crate) rendezvous: &'a Rendezvous,
    pub(crate) world: Team,
    pub(crate) stream: Arc<CudaStream>,
    /// Number of passed checks and number of failed checks. The key is the name of the operation.
    counts: BTreeMap<&'static str, (usize, usize)>,
    faults: Vec<String>,
}

impl<'a> Checks<'a> {
    pub(crate) fn new(context: &'a Context, rendezvous: &'a Rendezvous) -> Result<Self, Failure> {
        let (world, stream) = (context.world(), context.device().new_stream()?);
        Ok(Self { context, rendezvous, world, stream, counts: BTreeMap::new(), faults: Vec::new() })
    }

    pub(crate) fn pe(&self) -> u32 {
        self.context.pe().get()
    }

    pub(crate) fn n(&self) -> u32 {
        self.context.n_pes()
    }

    /// Returns the number of checks that this PE has completed until now, passed or failed.
    pub(crate) fn count(&self) -> usize {
        self.counts.values().map(|(right, wrong)| right + wrong).sum()
    }

    pub(crate) fn next(&self) -> Pe {
        Pe::new((self.pe() + 1) % self.n())
    }

    pub(crate) fn previous(&self) -> u32 {
        (self.pe() + self.n() - 1) % self.n()
    }

    /// Waits until every PE has called this function and all puts are visible.
    pub(crate) fn barrier(&self) -> Result<(), Failure> {
        Ok(self.world.barrier(&self.stream)?)
    }

    pub(crate) fn check(&mut self, operation: &'static str, holds: bool, what: impl FnOnce() -> String) {
        let counts = self.counts.entry(operation).or_default();
        if holds {
            counts.0 += 1;
        } else {
            counts.1 += 1;
            self.faults.push(format!("{operation}: {}", what()));
        }
    }

    pub(crate) fn same<T: Sample>(&mut self, operation: &'static str, found: &[T], expected: impl Fn(usize) -> T) {
        let wrong = (0..found.len()).find(|index| found[*index] != expected(*index));
        self.check(operation, wrong.is_none(), || {
            let index = wrong.unwrap_or_default();
            let name = std::any::type_name::<T>();
            format!("element {index} of type {name}: found {:?}, expected {:?}", found[index], expected(index))
        });
    }

    pub(crate) fn refused<R>(&mut self, what: &'static str, result: Result<R, NvshmemError>, kind: impl Fn(&MisuseKind) -> bool) {
        let error = result.err();
        let right = error.as_ref().and_then(NvshmemError::misuse_kind).is_some_and(kind);
        self.check("refused", right, || format!("{what}: found {error:?}, expected a misuse error"));
    }

    /// Prints a table on PE 0. For each operation, the table shows the numbers of passed and failed
    /// checks, summed over all PEs. Returns the number of passed checks of this PE, or an error if
    /// a check of this PE failed.
    pub(crate) fn finish(self) -> Result<usize, Failure> {
        let table =
            self.counts.iter().map(|(name, (right, wrong))| format!("{name}={right}/{wrong}")).collect::<Vec<_>>().join("\n");
        let all = self.rendezvous.exchange("check_nvshmem/table", table.as_bytes())?;
        if self.pe() == 0 {
            let mut total: BTreeMap<String, (usize, usize)> = BTreeMap::new();
            for table in all {
                for entry in String::from_utf8_lossy(&table).lines() {
                    let Some((name, (right, wrong))) =
                        entry.split_once('=').and_then(|(name, rest)| Some((name, rest.split_once('/')?)))
                    else {
                        continue;
                    };
                    let sum = total.entry(name.to_owned()).or_default();
                    sum.0 += right.parse::<usize>()?;
                    sum.1 += wrong.parse::<usize>()?;
                }
            }
            println!("{:<36}{:>8}{:>8}", "operation", "right", "wrong");
            for (name, (right, wrong)) in total {
                println!("{name:<36}{right:>8}{wrong:>8}");
            }
        }
        if let Some(first) = self.faults.first() {
            return Err(format!("failed checks of this PE: {}; the first: {first}", self.faults.len()).into());
        }
        Ok(self.counts.values().map(|(right, _)| right).sum())
    }
}

pub(crate) fn run(checks: &mut Checks<'_>) -> Result<(), Failure> {
    moves::<i8>(checks)?;
    moves::<u8>(checks)?;
    moves::<i32>(checks)?;
    moves::<u32>(checks)?;
    moves::<i64>(checks)?;
    moves::<u64>(checks)?;
    moves::<f16>(checks)?;
    moves::<bf16>(checks)?;
    moves::<f32>(checks)?;
    moves::<f64>(checks)?;
    moves::<F8E4M3>(checks)?;
    moves::<F8E5M2>(checks)?;
    signals(checks)?;
    words::<i32>(checks)?;
    words::<u32>(checks)?;
    words::<i64>(checks)?;
    words::<u64>(checks)?;
    // Symmetric memory belongs to all PEs, so teams use memory that all PEs have allocated.
    let pool = Pool {
        source: checks.context.alloc(COUNT * checks.n() as usize)?,
        target: checks.context.alloc(COUNT * checks.n() as usize)?,
    };
    for (name, team) in teams(checks)? {
        if let Some(team) = &team {
            on_team(checks, team, &pool).map_err(|error| format!("team {name}, {team:?}: {error}"))?;
        }
        // PEs that are not members of the team wait at this barrier for the members.
        checks.world.barrier_blocking()?;
        if let Some(team) = team.filter(|team| team.kind() == peerweave_nvshmem::TeamKind::Made) {
            team.destroy()?;
        }
        checks.world.barrier_blocking()?;
    }
    checks.context.free(pool.source)?;
    checks.context.free(pool.target)?;
    graphs(checks)?;
    Ok(())
}

/// Checks every kind of put to the next PE, and every kind of get from the next PE.
fn moves<T: Sample>(checks: &mut Checks<'_>) -> Result<(), Failure> {
    let (context, stream) = (checks.context, Arc::clone(&checks.stream));
    let (pe, next, previous) = (checks.pe(), checks.next(), checks.previous());
    let source = context.alloc::<T>(COUNT)?;
    let target = context.alloc::<T>(COUNT)?;
    let mine: Vec<T> = (0..COUNT).map(|index| T::sample(pe, index)).collect();
    let blank = vec![T::default(); COUNT];
    source.copy_from(&stream, &mine)?;
    let of_next = |index| T::sample(next.get(), index);
    let of_previous = |index| T::sample(previous, index);

    let step = |checks: &mut Checks<'_>,
                name,
                come: &dyn Fn(usize) -> T,
                call: &dyn Fn() -> Result<(), NvshmemError>|
     -> Result<(), Failure> {
        target.copy_from(&stream, &blank)?;
        checks.barrier()?;
        call()?;
        context.quiet(&stream)?;
        checks.barrier()?;
        let found = target.to_vec(&stream)?;
        checks.same(name, &found, come);
        checks.world.barrier_blocking()?;
        Ok(())
    };
    step(checks, "put", &of_previous, &|| context.put(&target, &source, next, &stream))?;
    step(checks, "put_nbi", &of_previous, &|| context.put_nbi(&target, &source, next, &stream))?;
    step(checks, "get", &of_next, &|| context.get(&mut target.clone(), &source, next, &stream))?;
    step(checks, "get_nbi", &of_next, &|| context.get_nbi(&target, &source, next, &stream))?;
    step(checks, "put_blocking", &of_previous, &|| {
        stream_is_idle(context, &stream)?;
        context.put_blocking(&target, &source, next)
    })?;
    step(checks, "get_blocking", &of_next, &|| {
        stream_is_idle(context, &stream)?;
        context.get_blocking(&target, &source, next)
    })?;
    let outside = DeviceMemory::<T>::from_slice(&stream, &mine)?;
    step(checks, "put_outside", &of_previous, &|| context.put(&target, &outside, next, &stream))?;
    // Copies every third source element to every second target element.
    let count = COUNT / 3;
    let strides = Strides { count, source: 3, dest: 2 };
    let strided = |from: u32| {
        move |index: usize| {
            if index.is_multiple_of(2) && index / 2 < count { T::sample(from, index / 2 * 3) } else { T::default() }
        }
    };
    step(checks, "put_strided", &strided(previous), &|| context.put_strided(&target, &source, strides, next, &stream))?;
    step(checks, "get_strided", &strided(next.get()), &|| context.get_strided(&target, &source, strides, next, &stream))?;
    // Transfers one value other than the first.
    let (one_target, one_source) = (target.slice(7..8)?, source.slice(11..12)?);
    let alone = |index: usize| if index == 7 { T::sample(previous, 11) } else { T::default() };
    step(checks, "put_value", &alone, &|| context.put_value(&one_target, mine[11], next, &stream))?;
    let value = context.get_value_blocking(&one_source, next)?;
    checks.same("get_value", &[value], |_| T::sample(next.get(), 11));
    // Puts a part of the buffer, with a signal.
    let signal = context.alloc_zeroed::<u64>(1)?;
    let (part_target, part_source) = (target.slice(5..COUNT - 5)?, source.slice(3..COUNT - 7)?);
    let part = |index: usize| if (5..COUNT - 5).contains(&index) { T::sample(previous, index - 2) } else { T::default() };
    for (name, nbi, value, op) in [("put_signal", false, 3, SignalOp::Set), ("put_signal_nbi", true, 4, SignalOp::Add)] {
        step(checks, name, &part, &|| {
            let told = Signal { word: &signal, value, op };
            if nbi {
                context.put_signal_nbi(&part_target, &part_source, &told, next, &stream)?;
            } else {
                context.put_signal(&part_target, &part_source, &told, next, &stream)?;
            }
            let expected = if nbi { 7 } else { 3 };
            context.signal_wait(&signal, Compare::Ge, expected, &stream)
        })?;
        let word = context.signal_fetch_blocking(&signal)?;
        let expected = if nbi { 7 } else { 3 };
        checks.check(name, word == expected, || format!("the signal is {word}, expected {expected}"));
    }
    drop((part_target, part_source, one_target, one_source));
    context.free(signal)?;
    context.free(target)?;
    context.free(source)?;
    Ok(())
}

/// Waits until the stream is idle. Call this function before calls that take no stream, because
/// such calls do not wait for earlier work in the stream.
fn stream_is_idle(context: &Context, stream: &Arc<CudaStream>) -> Result<(), NvshmemError> {
    let idle = peerweave_driver::wait(stream, std::time::Instant::now() + context.deadline())?;
    assert!(idle, "the stream was busy for longer than the deadline");
    Ok(())
}

/// Checks signals without data. Every PE signals every PE, and then waits for its signals with each
/// kind of comparison.
fn signals(checks: &mut Checks<'_>) -> Result<(), Failure> {
    let (context, stream, n) = (checks.context, Arc::clone(&checks.stream), checks.n());
    let word = context.alloc_zeroed::<u64>(1)?;
    checks.barrier()?;
    // Every PE adds to every PE's word.
    for pe in 0..n {
        context.signal(&Signal { word: &word, value: 10 + u64::from(checks.pe()), op: SignalOp::Add }, Pe::new(pe), &stream)?;
    }
    let sum: u64 = (0..u64::from(n)).map(|pe| 10 + pe).sum();
    for (condition, value) in [
        (Compare::Eq, sum),
        (Compare::Ge, sum),
        (Compare::Gt, sum - 1),
        (Compare::Le, sum),
        (Compare::Lt, sum + 1),
        (Compare::Ne, 0),
    ] {
        context.signal_wait(&word, Compare::Eq, sum, &stream)?;
        context.signal_wait(&word, condition, value, &stream)?;
        let found = word.to_vec(&stream)?[0];
        checks.check("signal_wait", found == sum, || format!("the signal word is {found}, expected {sum}"));
    }
    checks.barrier()?;
    context.signal(&Signal { word: &word, value: 5, op: SignalOp::Set }, checks.next(), &stream)?;
    context.signal_wait(&word, Compare::Eq, 5, &stream)?;
    let found = context.signal_fetch_blocking(&word)?;
    let fetched = word.to_vec(&stream)?[0];
    // The first read does not wait for the stream, so it may precede the update.
    checks.check("signal", (found == 5 || found == sum) && fetched == 5, || {
        format!("the first read returned {found}, expected 5 or {sum}; the second read returned {fetched}, expected 5")
    });
    checks.world.barrier_blocking()?;
    context.free(word)?;
    Ok(())
}

/// Checks the wait functions and the atomic operations on words of type `T`.
fn words<T: AtomicInteger + Reduce>(checks: &mut Checks<'_>) -> Result<(), Failure> {
    let (context, stream, next) = (checks.context, Arc::clone(&checks.stream), checks.next());
    let words = context.alloc_zeroed::<T>(3)?;
    checks.barrier()?;
    for index in 0..3 {
        context.put_value(&words.slice(index..index + 1)?, T::small(40 + index as u8), next, &stream)?;
    }
    context.wait_until(&words.slice(2..3)?, Compare::Eq, T::small(42), &stream)?;
    context.wait_until_all(&words, Compare::Ge, T::small(40), &stream)?;
    let found = words.to_vec(&stream)?;
    checks.same("wait_until", &found, |index| T::small(40 + index as u8));
    checks.world.barrier_blocking()?;
    if size_of::<T>() == 8 {
        let expected = T::small(40 + 6 + 1);
        context.atomic_add(&words, T::small(6), next, &stream)?;
        context.atomic_inc(&words, next, &stream)?;
        context.atomic_set(&words.slice(1..2)?, T::small(9), next, &stream)?;
        checks.barrier()?;
        let found = words.to_vec(&stream)?;
        checks.same("atomic", &found, |index| [expected, T::small(9), T::small(42)][index]);
    } else {
        let error = context.atomic_add(&words, T::small(1), next, &stream).err();
        checks.check("unsupported", matches!(error, Some(NvshmemError::Unsupported(_))), || format!("{error:?}"));
    }
    checks.world.barrier_blocking()?;
    context.free(words)?;
    Ok(())
}

type Named = (&'static str, Option<Team>);

/// Creates every kind of team. Returns the name of each team with the team, or with `None` if this
/// PE is not a member.
fn teams(checks: &mut Checks<'_>) -> Result<Vec<Named>, Failure> {
    let (context, n, pe) = (checks.context, checks.n(), checks.pe());
    let world = context.world();
    let mut teams = vec![
        ("world", Some(context.world())),
        ("shared", Some(context.shared()?)),
        ("node", Some(context.node()?)),
        ("same index", Some(context.same_index()?)),
    ];
    checks.check("team", teams[1].1.as_ref().is_some_and(|team| team.len() == n as usize), || {
        "the shared team does not contain all PEs, expected that all PEs are on one machine".to_owned()
    });
    let even = world.split_strided(0, 2, n.div_ceil(2), TeamConfig::default())?;
    checks.check("team", even.is_some() == pe.is_multiple_of(2), || format!("{even:?}"));
    if let Some(even) = &even {
        let translated = even.translate(even.rank(), &world)?;
        checks.check("team", translated == Some(Rank::new(pe)), || format!("{translated:?}"));
    }
    teams.push(("even", even));
    if n > 1 {
        teams.push(("all but the first PE", world.split_strided(1, 1, n - 1, TeamConfig::default())?));
        let (row, column) = world.split_2d(2, TeamConfig::default())?;
        checks.check("team", row.members().contains(&Pe::new(pe)) && row.len() <= 2, || format!("{row:?}"));
        checks.check("team", column.members()[column.rank().index()] == Pe::new(pe), || format!("{column:?}"));
        teams.push(("row", Some(row)));
        teams.push(("column", Some(column)));
        // A team of arbitrary members, in arbitrary order.
        let id = if pe == 0 { context.team_id()?.to_u64() } else { 0 };
        let all = checks.rendezvous.exchange("check_nvshmem/team", &id.to_le_bytes())?;
        let id = TeamId::from_u64(u64::from_le_bytes(all[0].as_slice().try_into()?));
        let backwards: Vec<Pe> = (0..n).rev().map(Pe::new).collect();
        let team = context.team_of(id, &backwards, TeamConfig::default())?;
        checks.check("team", team.members() == backwards && team.rank().get() == n - 1 - pe, || format!("{team:?}"));
        // A part of a team that was created by an id.
        let part = team.split_strided(0, 1, n - 1, TeamConfig::default())?;
        checks.check("team", part.is_some() == (pe != 0), || format!("{part:?}"));
        // All PEs in descending order.
        let down =
            world.split_strided(n - 1, -1, n, TeamConfig::default())?.ok_or("split_strided returned no team to a member")?;
        checks.check("team", down.members() == backwards && down.rank().get() == n - 1 - pe, || format!("{down:?}"));
        down.barrier_blocking()?;
        down.destroy()?;
        teams.push(("backwards", Some(team)));
        teams.push(("all but the last PE, in reverse order", part));
    }
    Ok(teams)
}

/// Symmetric memory for the checks of collectives. The checks of all element types use the same
/// memory.
struct Pool {
    source: SymmetricBuffer<u64>,
    target: SymmetricBuffer<u64>,
}

fn on_team(checks: &mut Checks<'_>, team: &Team, pool: &Pool) -> Result<(), Failure> {
    team.sync(&checks.stream)?;
    team.barrier(&checks.stream)?;
    team.sync_blocking()?;
    team.barrier_blocking()?;
    checks.check("barrier", true, String::new);
    moved::<F8E4M3>(checks, team, pool)?;
    moved::<F8E5M2>(checks, team, pool)?;
    collect::<i8>(checks, team, pool)?;
    collect::<u8>(checks, team, pool)?;
    collect::<i32>(checks, team, pool)?;
    collect::<u32>(checks, team, pool)?;
    collect::<i64>(checks, team, pool)?;
    collect::<u64>(checks, team, pool)?;
    collect::<f16>(checks, team, pool)?;
    collect::<bf16>(checks, team, pool)?;
    collect::<f32>(checks, team, pool)?;
    collect::<f64>(checks, team, pool)?;
    Ok(())
}

/// Checks collectives that only move data: broadcast from each root, fcollect, alltoall.
fn moved<T: Sample>(checks: &mut Checks<'_>, team: &Team, pool: &Pool) -> Result<(), Failure> {
    let (stream, n, pe) = (Arc::clone(&checks.stream), team.len(), checks.pe());
    let (source, target) = (pool.source.cast::<T>()?, pool.target.cast::<T>()?);
    let members = team.members().to_vec();
    let all = source.slice(0..COUNT * n)?;
    all.copy_from(&stream, &(0..COUNT * n).map(|index| T::sample(pe, index)).collect::<Vec<_>>())?;
    let one = source.slice(0..COUNT)?;
    let result = target.slice(0..COUNT)?;
    for (root, from) in members.iter().enumerate() {
        result.copy_from(&stream, &[T::default(); COUNT])?;
        team.barrier(&stream)?;
        team.broadcast(&result, &one, Rank::new(root as u32), &stream)?;
        let found = result.to_vec(&stream)?;
        checks.same("broadcast", &found, |index| T::sample(from.get(), index));
        team.barrier(&stream)?;
    }
    let result = target.slice(0..COUNT * n)?;
    result.copy_from(&stream, &vec![T::default(); COUNT * n])?;
    team.barrier(&stream)?;
    team.fcollect(&result, &one, &stream)?;
    let found = result.to_vec(&stream)?;
    checks.same("fcollect", &found, |index| T::sample(members[index / COUNT].get(), index % COUNT));
    result.copy_from(&stream, &vec![T::default(); COUNT * n])?;
    team.barrier(&stream)?;
    team.alltoall(&result, &all, &stream)?;
    let found = result.to_vec(&stream)?;
    let rank = team.rank().index();
    checks.same("alltoall", &found, |index| T::sample(members[index / COUNT].get(), rank * COUNT + index % COUNT));
    team.barrier_blocking()?;
    Ok(())
}

fn collect<T: Reduce>(checks: &mut Checks<'_>, team: &Team, pool: &Pool) -> Result<(), Failure> {
    moved::<T>(checks, team, pool)?;
    let (stream, n, pe) = (Arc::clone(&checks.stream), team.len(), checks.pe());
    let (source, target) = (pool.source.cast::<T>()?, pool.target.cast::<T>()?);
    let members = team.members().to_vec();
    let rank = team.rank().index();
    for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::And, ReduceOp::Or, ReduceOp::Xor] {
        if !op.accepts(T::DTYPE) {
            continue;
        }
        let expected = |index: usize| {
            let mut operands = members.iter().map(|pe| T::operand(op, pe.get(), index));
            let first = operands.next().expect("a team has at least one member");
            operands.fold(first, |one, other| T::combine(op, one, other))
        };
        let mine: Vec<T> = (0..COUNT * n).map(|index| T::operand(op, pe, index)).collect();
        let all = source.slice(0..COUNT * n)?;
        all.copy_from(&stream, &mine)?;
        let (one, result) = (source.slice(0..COUNT)?, target.slice(0..COUNT)?);
        result.copy_from(&stream, &[T::default(); COUNT])?;
        team.barrier(&stream)?;
        team.reduce(&result, &one, op, &stream)?;
        let found = result.to_vec(&stream)?;
        checks.same("reduce", &found, expected);
        team.barrier(&stream)?;
        team.reduce_scatter(&result, &all, op, &stream)?;
        let found = result.to_vec(&stream)?;
        checks.same("reduce_scatter", &found, |index| expected(rank * COUNT + index));
        team.barrier(&stream)?;
        team.reduce(&one, &one, op, &stream)?;
        let found = one.to_vec(&stream)?;
        checks.same("reduce in place", &found, expected);
        team.barrier_blocking()?;
    }
    Ok(())
}

/// Replays a graph that contains a put and a sum, and checks the results. Also checks that a graph
/// cannot contain a nonblocking put.
fn graphs(checks: &mut Checks<'_>) -> Result<(), Failure> {
    let (context, stream, next, previous, n) =
        (checks.context, Arc::clone(&checks.stream), checks.next(), checks.previous(), checks.n());
    let source = context.alloc::<f32>(COUNT)?;
    let target = context.alloc::<f32>(COUNT)?;
    let sum = context.alloc::<f32>(COUNT)?;
    let world = context.world();
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let captured = (|| -> Result<(), NvshmemError> {
        context.put(&target, &source, next, &stream)?;
        world.barrier(&stream)?;
        world.reduce(&sum, &source, ReduceOp::Sum, &stream)
    })();
    let nbi = context.put_nbi(&target, &source, next, &stream);
    let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)?;
    captured?;
    checks.refused("a nonblocking put in a graph", nbi, |kind| matches!(kind, MisuseKind::Context { .. }));
    let graph = graph.ok_or("the capture returned no graph")?;
    for round in 0..3_u32 {
        let number = |pe: u32| (pe * 10 + round) as f32;
        source.copy_from(&stream, &vec![number(checks.pe()); COUNT])?;
        checks.barrier()?;
        graph.launch()?;
        let (put, summed) = (target.to_vec(&stream)?, sum.to_vec(&stream)?);
        checks.same("graph", &put, |_| number(previous));
        checks.same("graph", &summed, |_| (0..n).map(number).sum());
        checks.world.barrier_blocking()?;
    }
    // Memory that a graph uses is not freed while the graph lives.
    let refused = context.free(sum.clone());
    checks.refused("freeing memory that has another handle", refused, |kind| matches!(kind, MisuseKind::InUse { .. }));
    let second = target.clone();
    drop((target, graph));
    // Waits until a thread of the driver has dropped the graph's reference, and a thread of
    // Peerweave has freed the memory.
    std::thread::sleep(std::time::Duration::from_millis(200));
    peerweave_driver::drain_retired(std::time::Instant::now() + context.deadline());
    context.free(second)?;
    context.free(source)?;
    context.free(sum)?;
    Ok(())
}
