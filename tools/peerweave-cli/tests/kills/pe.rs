//! One PE of the job: joins, runs a mixture of all operations, and dies if it is the victim.

use std::io::Write;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use peerweave::{Buffer, Rank, ReduceOp, Result, VectorCounts, World};
use peerweave_tests::data::sample::hash;
use peerweave_tests::repeat::survival::Survival;
use peerweave_tests::repeat::workload::Workload;
use peerweave_tests::run::job::named_by;

use crate::job::{DEATH, DIRECTORY, Death, GOES_ON, ROUNDS, SEED, VICTIM};

/// Phase of this PE: 0 before it joins, 1 while it joins, 2 after it has joined.
static PHASE: AtomicU8 = AtomicU8::new(0);
static ME: OnceLock<String> = OnceLock::new();

fn var(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Appends a line to this PE's notes, in one write.
fn note(line: &str) {
    let path = format!("{}/notes/{}", var(DIRECTORY), ME.get().expect("ME is set at the start"));
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes())).expect("notes can be written");
}

fn note_death() {
    let phase = ["starting", "joining", "joined"][usize::from(PHASE.load(Ordering::Relaxed))];
    note(&format!("died {} {phase}", now_ns()));
}

pub(crate) fn main() -> ExitCode {
    let started = Instant::now();
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .expect("Linux supports the death signal");
    let me = std::env::var("PEERWEAVE_PE").or_else(|_| std::env::var("RANK")).expect("a launcher has set the index of this PE");
    let me = ME.get_or_init(|| me);
    let death = (*me == var(VICTIM)).then(|| Death::parse(&var(DEATH)));
    if let Some(Death::Kill(microseconds)) = death {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(microseconds).saturating_sub(started.elapsed()));
            note_death();
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
                .expect("this process can be killed");
        });
    }
    if let Some(Death::Panic(_)) = death {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // This PE stays alive until the backtrace is written, which takes some time.
            usual(info);
            note_death();
        }));
    }
    PHASE.store(1, Ordering::Relaxed);
    let joined = World::from_env().inspect(|_| PHASE.store(2, Ordering::Relaxed));
    let (outcome, world) = match joined {
        Ok(world) => (work(&world, death), Some(world)),
        Err(error) => (Err(error), None),
    };
    match outcome {
        Ok(true) => {
            note(&format!("fine {}", now_ns()));
            ExitCode::SUCCESS
        }
        Ok(false) => {
            drop(world);
            ExitCode::from(7)
        }
        Err(error) => {
            let names: Vec<String> = named_by(&error).iter().map(|pe| pe.get().to_string()).collect();
            note(&format!("lost {} {} | {error}", now_ns(), names.join(",")));
            match world.filter(|_| var(GOES_ON) == "1") {
                None => ExitCode::from(3),
                Some(world) => match go_on(world, &error) {
                    Ok(n_pes) => {
                        note(&format!("went_on {n_pes}"));
                        ExitCode::SUCCESS
                    }
                    Err(error) => {
                        note(&format!("stuck {error}"));
                        ExitCode::from(4)
                    }
                },
            }
        }
    }
}

/// Continues with the surviving PEs. Returns their number.
fn go_on(world: World, error: &peerweave::Error) -> Result<usize> {
    note("shrinks now");
    let seed: u64 = var(SEED).parse().expect("the variable is a number");
    let mut survival = Survival::new(world);
    survival.shrink(error)?;
    let left = survival.world.n_pes();
    survival.run(seed, left, 25, || {})?;
    let mut sum = [0u64];
    let me = survival.first[survival.world.my_pe().index()];
    survival.world.team().all_reduce_blocking(&[1 << me], &mut sum, ReduceOp::Sum)?;
    assert_eq!(sum[0], survival.first.iter().map(|pe| 1 << pe).sum::<u64>());
    assert!(!survival.first.contains(&var(VICTIM).parse().expect("the variable is a number")), "{:?}", survival.first);
    survival.world.finalize().map(drop)?;
    Ok(left)
}

/// Runs operations until one fails or all rounds are done. Returns `false` if this PE is the victim
/// and must return an error of its own.
fn work(world: &World, death: Option<Death>) -> Result<bool> {
    let (seed, rounds): (u64, u64) =
        (var(SEED).parse().expect("the variable is a number"), var(ROUNDS).parse().expect("the variable is a number"));
    let mut mixture = Workload::seeded(world, seed);
    let mut round = 0;
    loop {
        match death {
            Some(Death::Panic(at)) if at == round => panic!("on purpose"),
            Some(Death::Abort(at)) if at == round => {
                note_death();
                std::process::abort();
            }
            Some(Death::Return(at)) if at == round => {
                note_death();
                return Ok(false);
            }
            _ => {}
        }
        if rounds > 0 && round == rounds {
            break;
        }
        if round % 2 == 0 {
            mixture.step()?
        } else {
            other(world, hash(&[seed, round, 5]), round)?
        }
        round += 1;
    }
    drop(mixture);
    world.finalize().map(|_| true)
}

/// Runs an operation that [`Workload`] does not contain, on the world's team.
fn other(world: &World, random: u64, round: u64) -> Result<()> {
    let team = world.team();
    let (n, me) = (team.size(), team.my_rank().index());
    let len = [1, 5, 64, 700, 5_000, 60_000, 250_000][(random >> 16) as usize % 7];
    let short = len.min(30_000);
    let root = Rank::new(((random >> 24) % n as u64) as u32);
    let is_root = me == root.index();
    let mine = round * 1000 + me as u64;
    let sum = round * 1000 * n as u64 + (n * (n - 1) / 2) as u64;
    let right = Rank::new(((me + 1) % n) as u32);
    match random % 9 {
        // Messages between pairs. The receiver reads large messages from the sender's memory, and
        // the sender may have died before the receiver reads.
        0 | 1 => {
            let peer = me ^ 1;
            if peer < n {
                let (send, mut recv) = (vec![mine; len], vec![0u64; len]);
                let peer_rank = Rank::new(peer as u32);
                if me % 2 == 0 {
                    team.send_blocking(&send, peer_rank)?;
                    team.recv_blocking(&mut recv, peer_rank)?;
                } else {
                    team.recv_blocking(&mut recv, peer_rank)?;
                    team.send_blocking(&send, peer_rank)?;
                }
                assert!(recv.iter().all(|&x| x == round * 1000 + peer as u64));
            }
            Ok(())
        }
        // The sender continues, and may die before the receiver has received the message.
        2 => {
            let stream = world.stream()?;
            let left = Rank::new(((me + n - 1) % n) as u32);
            let send = Buffer::from(vec![mine; len]);
            let ticket = team.send(&stream, &send, right)?;
            let mut recv = vec![0u64; len];
            team.recv_blocking(&mut recv, left)?;
            ticket.wait()?;
            assert!(recv.iter().all(|&x| x == round * 1000 + u64::from(left.get())));
            Ok(())
        }
        3 => {
            let mut part = vec![0u64; short];
            team.reduce_scatter_blocking(&vec![mine; short * n], &mut part, ReduceOp::Sum)?;
            assert!(part.iter().all(|&x| x == sum));
            Ok(())
        }
        4 => {
            let mut all = vec![0u64; if is_root { short * n } else { 0 }];
            team.gather_blocking(&vec![mine; short], is_root.then_some(&mut all[..]), root)?;
            let mut back = vec![0u64; short];
            team.scatter_blocking(is_root.then_some(&all[..]), &mut back, root)?;
            assert!(back.iter().all(|&x| x == mine));
            Ok(())
        }
        5 => {
            let count = |from: usize, to: usize| (from * 3 + to * 5 + (random >> 20) as usize % 700) % 700;
            let (send, recv): (Vec<usize>, Vec<usize>) = (0..n).map(|rank| (count(me, rank), count(rank, me))).unzip();
            let (from, mut to) = (vec![mine; send.iter().sum()], vec![0; recv.iter().sum()]);
            team.all_to_all_v_blocking(&from, &mut to, VectorCounts::packed(send, recv))
        }
        6 => {
            let words = world.alloc_zeroed::<u64>(1)?;
            for value in 0..20 {
                team.atomic_fetch_add_blocking(&words, 0, value, root)?;
            }
            team.barrier_blocking()?;
            assert_eq!(team.g_blocking(&words, 0, root)?, 190 * n as u64);
            words.release()
        }
        7 => {
            let data = world.alloc_zeroed::<u64>(short)?;
            team.put_nbi_blocking(&vec![mine; short], &data, right)?;
            world.quiet_blocking()?;
            team.barrier_blocking()?;
            assert_eq!(data.load(short - 1)?, round * 1000 + ((me + n - 1) % n) as u64);
            data.release()
        }
        _ => {
            // Two teams at once: each PE waits in one for a PE that may fail in the other.
            let (parity, half) = (team.split(Some((me % 2) as u64), 0)?, team.split(Some((me / 2) as u64), 0)?);
            let (parity, half) = (parity.expect("the rank passed a color"), half.expect("the rank passed a color"));
            half.barrier_blocking()?;
            parity.destroy()?;
            half.destroy()
        }
    }
}
