//! Checks shared GPU memory: `check vmm [--pes N] [--threads] [--kill] [--ipc] [--fabric]
//! [--rounds N]`.
//!
//! N processes (or threads) create one symmetric heap. Every PE writes and reads the memory of
//! every other PE, before and after the heap grows. Many rounds of allocation must leak no memory.
//! The line `transport: ...` names the transport that the heap uses. With `--fabric` this line
//! contains `FELL BACK` and the reason if fabric handles are not available. With `--kill` one
//! process is killed while its memory is mapped, and the other processes must get an error that
//! names the killed PE. Before the last line, `OK ...` or `FAILED ...`, the command prints a table
//! of PE 0's steps. No wait is longer than 20 seconds. After 240 seconds the command kills PEs that
//! are processes, and after 260 seconds every process ends itself. The command uses no multicast
//! objects.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use peerweave_bootstrap::{Job, Options, Rendezvous, Server};
use peerweave_driver::{CudaContext, CudaStream, Driver};
use peerweave_types::Pe;
use peerweave_vmm::{
    Exportable, Granularity, HeapOptions, HeapTransport, Misuse, PeerMatrix, PhysicalMemory, Reservation, Rights, Sharing,
    SymmetricHeap, SymmetricMemory, VmmError, peer,
};

use crate::table::Table;
use crate::{Failure, launch};

/// Function that runs one test for memory leaks on a PE: repeats the actions of the test the given
/// number of times.
type Rounds = fn(&Pes, usize) -> Result<(), Failure>;

/// Maximum duration of a wait.
const WAIT: Duration = Duration::from_secs(20);
/// Time after which the parent process ends all PEs.
const WHOLE_RUN: Duration = Duration::from_secs(240);
const MIB: usize = 1 << 20;
/// Maximum decrease of free device memory, in bytes, during the second pass of a test for memory
/// leaks. Each pass repeats the same allocations many times. One allocation by the driver itself
/// may cost this much, but a leak would cost more, because each repetition would leak.
const MOST_KEPT: i64 = 2 << 20;

/// The options of `check vmm`. The command uses no multicast objects.
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// Number of PEs; default: one for each GPU
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pes: Option<u32>,
    /// Run the PEs as threads of this process
    #[arg(long, conflicts_with = "kill")]
    threads: bool,
    /// Kill the last process while its memory is mapped; the other processes must get an error that
    /// names the killed PE
    #[arg(long)]
    kill: bool,
    /// Share memory by legacy CUDA IPC handles
    #[arg(long, conflicts_with = "fabric")]
    ipc: bool,
    /// Share memory by fabric handles if these are available; otherwise the line `transport:`
    /// contains FELL BACK and the reason
    #[arg(long)]
    fabric: bool,
    /// Number N of rounds in each test for memory leaks: N rounds of allocations, N rounds of
    /// mappings, and N / 50 (at least 2) creations of a heap
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// Runs `check vmm`. Returns the text that this process prints as its last line.
pub(crate) fn run(plan: &Arguments) -> Result<String, Failure> {
    launch::end_after(WHOLE_RUN + WAIT);
    if !launch::is_pe() {
        return parent(plan).map(|done| format!("OK {done}"));
    }
    let job = Job::from_env()?;
    pe(&job, plan).map_err(|error| format!("{}: {error}", job.pe))?;
    Ok(format!("{}: done", job.pe))
}

/// The steps that a PE has made, each with its duration and whether it passed.
#[derive(Default)]
struct Steps(Vec<(&'static str, Duration, bool)>);

impl Steps {
    fn time<R>(&mut self, what: &'static str, step: impl FnOnce() -> Result<R, Failure>) -> Result<R, Failure> {
        let start = Instant::now();
        let done = step();
        self.0.push((what, start.elapsed(), done.is_ok()));
        done
    }

    fn print(&self) {
        let mut table = Table::new(&["step", "seconds", "result"]);
        for (what, took, passed) in &self.0 {
            let result = if *passed { "OK" } else { "FAILED" };
            table.row([(*what).to_owned(), format!("{:.1}", took.as_secs_f64()), result.to_owned()]);
        }
        table.print();
    }
}

impl Arguments {
    fn sharing(&self) -> Sharing {
        match (self.ipc, self.fabric) {
            (true, _) => Sharing::Ipc,
            (_, true) => Sharing::PreferFabric,
            _ => Sharing::Auto,
        }
    }
}

/// Starts the PEs as processes or threads, and waits until all PEs have ended. Returns the number
/// of PEs and the duration as text. The command prints `OK` and this text as its last line.
fn parent(plan: &Arguments) -> Result<String, Failure> {
    // Queries the driver without creating a context, because a context would take memory that the
    // children need.
    let matrix = PeerMatrix::look()?;
    let n_pes = plan.pes.unwrap_or(matrix.devices.len() as u32);
    println!("driver for CUDA {}, devices: {}, PEs: {n_pes}", Driver::get()?.version()?, matrix.devices.len());
    for device in &matrix.devices {
        let reached = matrix.pairs[device.ordinal].iter().flatten().filter(|pair| pair.access).count();
        let atomics = matrix.pairs[device.ordinal].iter().flatten().filter(|pair| pair.native_atomics).count();
        println!(
            "  device {} {} {}: VMM {}, {:?}, devices with peer access: {reached}, of these with native atomics: {atomics}",
            device.ordinal, device.name, device.pci_address, device.vmm, device.exportable
        );
    }
    let start = Instant::now();
    if plan.threads {
        let (_server, jobs) = Server::on_this_machine(n_pes)?;
        let outcomes: Vec<Result<(), Failure>> = std::thread::scope(|scope| {
            let threads: Vec<_> = jobs.iter().map(|job| scope.spawn(move || pe(job, plan))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err("the thread of this PE panicked".into())))
                .collect()
        });
        for (pe, outcome) in outcomes.into_iter().enumerate() {
            outcome.map_err(|error| format!("PE {pe}: {error}"))?;
        }
    } else {
        processes(n_pes, plan)?;
    }
    let kind = if plan.threads { "threads" } else { "processes" };
    let what = if plan.kill { ", with the last process killed" } else { "" };
    Ok(format!("{n_pes} {kind}{what}, {:.1?}", start.elapsed()))
}

fn processes(n_pes: u32, plan: &Arguments) -> Result<(), Failure> {
    let ended = launch::processes(n_pes, WHOLE_RUN, |line| line.ends_with(": done"))?;
    for (pe, ended) in ended.iter().enumerate() {
        let killed = plan.kill && pe + 1 == n_pes as usize;
        match (ended.status.success(), killed) {
            (true, false) | (false, true) => {}
            (true, true) => return Err("the last PE exited with status 0, expected that this PE is killed".into()),
            (false, false) => return Err(format!("PE {pe}: {}", ended.status).into()),
        }
    }
    Ok(())
}

/// The PEs of the check as one PE sees them: the rendezvous with the other PEs, the number of PEs,
/// and the device and the stream of this PE.
struct Pes {
    rendezvous: Arc<Rendezvous>,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    me: u32,
    n: u32,
    sharing: Sharing,
}

impl Pes {
    fn say(&self, what: &str) {
        if self.me == 0 {
            println!("  {what}");
        }
    }

    fn barrier(&self, label: &str) -> Result<(), Failure> {
        Ok(self.rendezvous.barrier(label)?)
    }

    fn others(&self) -> impl Iterator<Item = Pe> {
        (0..self.n).filter(|pe| *pe != self.me).map(Pe::new)
    }
}

fn soon() -> Instant {
    Instant::now() + WAIT
}

/// Runs all steps of one PE. PE 0 prints the table of its steps.
fn pe(job: &Job, plan: &Arguments) -> Result<(), Failure> {
    let mut steps = Steps::default();
    let outcome = walk(job, plan, &mut steps);
    if job.pe.get() == 0 {
        steps.print();
    }
    outcome
}

fn walk(job: &Job, plan: &Arguments, steps: &mut Steps) -> Result<(), Failure> {
    let rendezvous = Arc::new(Rendezvous::join(job, Options { deadline: WAIT, ..Options::default() })?);
    let devices = Driver::get()?.device_count()?;
    let context = peerweave_driver::context(job.pe.index() % devices)?;
    let stream = context.new_stream()?;
    let pes = Pes { rendezvous, stream, me: job.pe.get(), n: job.n_pes, sharing: plan.sharing(), context };
    if plan.kill {
        return steps.time("death of one PE", || killed(&pes));
    }
    let before = steady(&pes)?;
    steps.time("transfers between all PEs, growth of the heap", || exchange_and_grow(&pes))?;
    let after_heap = steady(&pes)?;
    // Each test for memory leaks repeats one action in two passes. In the first pass the driver may
    // allocate page tables and memory of streams, and keep them for later use. So a decrease of
    // free memory in the first pass is only printed, and the second pass must keep no memory.
    let n = plan.rounds as usize;
    let kinds: [(&str, Rounds, usize); 3] =
        [("allocations", rounds, n), ("heaps", heaps, (n / 50).max(2)), ("mappings", mappings, n)];
    let mut kept = Vec::new();
    for (kind, body, n) in kinds {
        let first = steady(&pes)?;
        body(&pes, (n / 10).max(2))?;
        let second = steady(&pes)?;
        steps.time(kind, || body(&pes, n))?;
        let third = steady(&pes)?;
        let lost = |before: usize, after: usize| before as i64 - after as i64;
        kept.push(format!(
            "{kind}: free memory decreased by {} bytes in the first pass and by {} bytes in the second pass",
            lost(first, second),
            lost(second, third)
        ));
        if lost(second, third) > MOST_KEPT {
            return Err(format!(
                "memory leak in {n} {kind}: free memory decreased by {} bytes in the second pass, expected at most {MOST_KEPT}",
                lost(second, third)
            )
            .into());
        }
    }
    pes.say(&format!("tests for memory leaks: {}", kept.join("; ")));
    let after = steady(&pes)?;
    pes.say(&format!("free memory: {before} before, {after_heap} after the first heap, {after} at the end (bytes)"));
    pes.barrier("measured")?;
    if pes.me == 0 {
        steps.time("every pair of devices", || pairs(&pes, devices))?;
    }
    pes.barrier("end")?;
    Arc::into_inner(pes.rendezvous).ok_or("a finalized heap still owns the rendezvous")?.leave()?;
    Ok(())
}

/// Waits until every PE has freed the memory that it dropped. Returns the free memory of the device
/// in bytes.
fn steady(pes: &Pes) -> Result<usize, Failure> {
    if !peerweave_driver::drain_retired(soon()) {
        return Err("dropped memory was not freed before the deadline".into());
    }
    pes.barrier("settled")?;
    let (free, _) = pes.context.mem_get_info()?;
    pes.barrier("measured")?;
    Ok(free)
}

fn words(from: u32, to: u32, round: u32, len: usize) -> Vec<u64> {
    let seed = u64::from(from) << 48 | u64::from(to) << 32 | u64::from(round) << 8;
    (0..len as u64)
        .map(|index| (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index.wrapping_mul(0xd134_2543_de82_ef95)))
        .collect()
}

fn compare(found: &[u64], expected: &[u64], what: &str) -> Result<(), Failure> {
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None if found.len() == expected.len() => Ok(()),
        None => Err(format!("{what}: found {} words, expected {}", found.len(), expected.len()).into()),
        Some(at) => Err(format!("{what}: word {at} is {:#x}, expected {:#x}", found[at], expected[at]).into()),
    }
}

/// Writes from every PE to every other PE, and reads the data back.
fn all_to_all(pes: &Pes, heap: &SymmetricHeap, round: u32, len: usize) -> Result<(), Failure> {
    let mailbox: SymmetricMemory<u64> = heap.alloc(len * pes.n as usize)?;
    let mut staging: SymmetricMemory<u64> = heap.alloc(len)?;
    let slot = |of: u32| of as usize * len..(of as usize + 1) * len;
    let zeros = peerweave_vmm::read(&pes.stream, &mailbox, soon())?;
    compare(&zeros, &vec![0; zeros.len()], "newly allocated memory")?;
    pes.barrier("every PE has read the zeros")?;
    for pe in pes.others() {
        peerweave_vmm::write(&pes.stream, &mut staging, &words(pes.me, pe.get(), round, len), soon())?;
        let mut theirs = mailbox.peer(pe)?.slice(slot(pes.me))?;
        peerweave_vmm::copy(&pes.stream, &mut theirs, &staging)?;
    }
    done(pes)?;
    pes.barrier("put")?;
    for pe in pes.others() {
        let mine = mailbox.slice(slot(pe.get()))?;
        let found = peerweave_vmm::read(&pes.stream, &mine, soon())?;
        compare(&found, &words(pe.get(), pes.me, round, len), &format!("the elements that {pe} put into this PE's memory"))?;
    }
    // Reads the data of every put from the PE that received it.
    for pe in pes.others() {
        for from in (0..pes.n).filter(|from| *from != pe.get()) {
            let theirs = mailbox.peer(pe)?.slice(slot(from))?;
            peerweave_vmm::copy(&pes.stream, &mut staging, &theirs)?;
            let found = peerweave_vmm::read(&pes.stream, &staging, soon())?;
            compare(
                &found,
                &words(from, pe.get(), round, len),
                &format!("the elements that PE {from} put into the memory of {pe}"),
            )?;
        }
    }
    pes.barrier("got")?;
    heap.free(staging)?;
    heap.free(mailbox)?;
    Ok(())
}

fn done(pes: &Pes) -> Result<(), Failure> {
    match peerweave_driver::wait(&pes.stream, soon())? {
        true => Ok(()),
        false => Err("a stream did not complete before the deadline".into()),
    }
}

fn options(pes: &Pes) -> HeapOptions {
    HeapOptions::new(32 * MIB).max_bytes(1 << 30).sharing(pes.sharing)
}

/// Prints the transport that the heap uses, and checks that the heap uses the requested transport.
fn report_transport(pes: &Pes, heap: &SymmetricHeap) -> Result<(), Failure> {
    let transport = heap.transport();
    match (pes.sharing, transport, heap.fallback_reason()) {
        (Sharing::PreferFabric, HeapTransport::Fabric, None) => pes.say("transport: Fabric, as requested"),
        (Sharing::PreferFabric, transport, Some(why)) if transport != HeapTransport::Fabric => {
            pes.say(&format!("transport: {transport:?}. FELL BACK: fabric was requested and is NOT used: {why}"));
        }
        (Sharing::Ipc, HeapTransport::Ipc, None) => pes.say("transport: Ipc, as requested"),
        (Sharing::Auto, transport, None) => pes.say(&format!("transport: {transport:?}")),
        (asked, transport, why) => {
            return Err(format!("{asked:?} was requested, but the heap uses {transport:?} ({why:?})").into());
        }
    }
    Ok(())
}

fn exchange_and_grow(pes: &Pes) -> Result<(), Failure> {
    let start = Instant::now();
    let heap = SymmetricHeap::new(&pes.rendezvous, &pes.context, options(pes))?;
    pes.say(&format!("created a heap of {} bytes on each PE in {:.1?}", heap.bytes(), start.elapsed()));
    report_transport(pes, &heap)?;
    if let Ok(geometry) = heap.geometry() {
        for place in 0..pes.n {
            let expected = geometry.base + u64::from(place) * geometry.stride + 4096;
            if heap.address_of(Pe::new(place), 4096)? != expected {
                return Err("address_of differs from base + stride * pe + offset, computed from the heap's geometry".into());
            }
        }
    }
    let start = Instant::now();
    let len = (16 * MIB / 8) / pes.n as usize;
    all_to_all(pes, &heap, 1, len)?;
    pes.say(&format!("every PE wrote {} bytes to every other PE, and read them back, in {:.1?}", len * 8, start.elapsed()));
    let full = heap.alloc::<u8>(64 * MIB);
    if !matches!(full, Err(VmmError::Misuse(Misuse::Exhausted { .. }))) {
        return Err(format!("an allocation larger than the heap returned {full:?}, expected an error").into());
    }
    let start = Instant::now();
    heap.grow(64 * MIB)?;
    pes.say(&format!("grew the heap to {} bytes on each PE in {:.1?}", heap.bytes(), start.elapsed()));
    // The allocation is larger than the first chunk of the heap, so it is in both chunks or in the
    // chunk that `grow` added.
    all_to_all(pes, &heap, 2, (48 * MIB / 8) / pes.n as usize)?;
    pes.say("every PE wrote and read the memory of every other PE after the growth");
    heap.check_peers()?;
    let dropped = heap.alloc::<u32>(1000)?;
    drop(dropped);
    let report = heap.finalize()?;
    if report.leaks.len() != 1 || !report.leaks[0].dropped {
        return Err(format!("finalize reported {report:?}, expected one dropped allocation").into());
    }
    Ok(())
}

/// Allocates and frees repeatedly in one heap.
fn rounds(pes: &Pes, n: usize) -> Result<(), Failure> {
    let heap = SymmetricHeap::new(&pes.rendezvous, &pes.context, options(pes))?;
    let start = Instant::now();
    for round in 0..n {
        let memory = heap.alloc::<f32>(1 + round * 997 % 100_000)?;
        let other = heap.alloc::<u64>(1 + round * 31 % 5000)?;
        heap.free(memory)?;
        heap.free(other)?;
    }
    let each = start.elapsed() / (4 * n.max(1)) as u32;
    pes.say(&format!("{n} rounds of two allocations and two frees: {each:.1?} per call"));
    let whole = heap.alloc::<u8>(heap.bytes() as usize)?;
    heap.free(whole)?;
    let report = heap.finalize()?;
    if report.is_clean() { Ok(()) } else { Err(report.to_string().into()) }
}

/// Creates heaps repeatedly, and finalizes or drops each heap.
fn heaps(pes: &Pes, n: usize) -> Result<(), Failure> {
    let start = Instant::now();
    for round in 0..n {
        let heap = SymmetricHeap::new(&pes.rendezvous, &pes.context, options(pes))?;
        let memory = heap.alloc::<u64>(64)?;
        // With legacy IPC, memory that other PEs may have open is leaked instead of freed.
        if round % 2 == 0 || pes.sharing == Sharing::Ipc {
            heap.free(memory)?;
            heap.finalize()?;
        }
    }
    pes.say(&format!("created and released {n} heaps: {:.1?} per heap", start.elapsed() / n.max(1) as u32));
    Ok(())
}

/// Creates, maps, zeroes and drops physical memory repeatedly.
fn mappings(pes: &Pes, n: usize) -> Result<(), Failure> {
    let ordinal = pes.context.ordinal();
    let granularity = Granularity::of_device(ordinal, Exportable::NOWHERE)?;
    let bytes = granularity.recommended;
    let addresses = Reservation::new(&pes.context, 64 * bytes, bytes.next_power_of_two())?;
    let start = Instant::now();
    for round in 0..n {
        let memory = PhysicalMemory::create(&pes.context, bytes, Exportable::NOWHERE)?;
        let offset = round % 64 * bytes;
        // The previous mapping is freed as soon as the stream has completed its work.
        let mapping = loop {
            match addresses.map(offset, &memory, bytes) {
                Err(VmmError::Misuse(Misuse::Occupied { .. })) if peerweave_driver::drain_retired(soon()) => {}
                mapping => break mapping?,
            }
        };
        mapping.allow(&[ordinal], Rights::ReadWrite)?;
        peerweave_vmm::zero(&pes.stream, &mut mapping.memory::<u64>(ordinal)?)?;
    }
    done(pes)?;
    pes.say(&format!("{n} mappings created, used and dropped: {:.1?} each", start.elapsed() / n.max(1) as u32));
    Ok(())
}

/// Checks access to mapped memory between every ordered pair of devices, in one process.
fn pairs(pes: &Pes, devices: usize) -> Result<(), Failure> {
    let start = Instant::now();
    let contexts: Vec<_> = (0..devices).map(peerweave_driver::context).collect::<Result<_, _>>()?;
    let mut tried = 0;
    for from in &contexts {
        for to in contexts.iter().filter(|to| to.ordinal() != from.ordinal()) {
            peer::check_pair(from, to, Instant::now() + Duration::from_secs(5))?;
            tried += 1;
            if start.elapsed() > WAIT * 3 / 4 {
                return Err(format!(
                    "checking {tried} pairs of devices took {:.1?}, expected at most {:?} for all pairs",
                    start.elapsed(),
                    WAIT * 3 / 4
                )
                .into());
            }
        }
    }
    pes.say(&format!("{tried} pairs of devices checked from one process: {:.1?}", start.elapsed()));
    Ok(())
}

/// Kills the last PE while its memory is mapped, and checks the errors of the other PEs.
fn killed(pes: &Pes) -> Result<(), Failure> {
    let victim = Pe::new(pes.n - 1);
    let heap = SymmetricHeap::new(&pes.rendezvous, &pes.context, options(pes))?;
    report_transport(pes, &heap)?;
    let mut memory: SymmetricMemory<u64> = heap.alloc(1 << 20)?;
    let mine = words(pes.me, pes.me, 3, 1 << 20);
    peerweave_vmm::write(&pes.stream, &mut memory, &mine, soon())?;
    pes.barrier("written")?;
    if pes.me == victim.get() {
        // Dies as if killed by the kernel's out-of-memory killer: no destructor runs, and the PE
        // does not leave the rendezvous.
        #[cfg(target_os = "linux")]
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
        return Err("the process is still running after SIGKILL to itself".into());
    }
    let start = Instant::now();
    let error = match heap.alloc::<f32>(1000) {
        Ok(_) => return Err("an allocation succeeded, expected an error that names the dead PE".into()),
        Err(error) => error,
    };
    let waited = start.elapsed();
    if error.blamed() != [victim] {
        return Err(format!("the allocation failed with an error that does not name {victim}: {error}").into());
    }
    pes.say(&format!("the allocation failed after {waited:.1?}: {error}"));
    match heap.grow(1) {
        Err(VmmError::Misuse(Misuse::Broken { .. })) => {}
        other => {
            return Err(format!("growing the heap after the death of a PE returned {other:?}, expected Misuse::Broken").into());
        }
    }
    // The memory of the killed PE is still mapped in this process, and the mapping keeps it alive.
    let found = peerweave_vmm::read(&pes.stream, &memory.peer(victim)?, soon())?;
    compare(&found, &words(victim.get(), victim.get(), 3, 1 << 20), "the memory of the killed PE")?;
    pes.say("the memory of the killed PE is still mapped and has the right content");
    drop((memory, heap));
    if !peerweave_driver::drain_retired(soon()) {
        return Err("dropped memory was not freed before the deadline".into());
    }
    Ok(())
}
