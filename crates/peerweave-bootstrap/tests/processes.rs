//! Tests with PEs that are processes, which can be killed. This file has its own test harness. The
//! processes are copies of this program, controlled by an environment variable.

mod common;

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("these scenarios need Linux");
}

#[cfg(target_os = "linux")]
fn main() {
    match std::env::var(common::process::ROLE) {
        Ok(role) => linux::role(&role),
        Err(_) => linux::scenarios(),
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::thread;
    use std::time::{Duration, Instant};

    use peerweave_bootstrap::{BootstrapError, Endpoint, Job, Loss, Options, Pe, Rendezvous, ServerOptions};

    use crate::common::process::{Process, run_scenarios, say, torchrun};
    use crate::common::{LONG, PASSES, Party, SOON, eventually, socket_exists};
    use crate::scenarios;

    /// Name of the variable with the number of descriptors that a process may open.
    const ROOM: &str = "TEST_ROOM";

    fn start_all(party: &Party, role: &str, pes: impl IntoIterator<Item = u32>) -> Vec<Process> {
        pes.into_iter().map(|pe| Process::start(role, party.job(pe).to_vars())).collect()
    }

    /// Asserts that all processes report `pe` as lost soon after `since`.
    fn all_name(processes: &mut [Process], pe: u32, since: Instant) {
        for process in processes {
            assert_eq!(process.line(), format!("lost {pe}"));
        }
        assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
    }

    // The code of a process depends on its role. The process prints a line for each step.

    pub(crate) fn role(role: &str) {
        let joined = || Rendezvous::join(&Job::from_env().unwrap(), Options { deadline: LONG, ..Options::default() });
        match role {
            "exchange" => {
                let rendezvous = joined().unwrap();
                let blobs = rendezvous.exchange("pids", &std::process::id().to_le_bytes()).unwrap();
                println!("{}", blobs.len());
                rendezvous.leave().unwrap();
            }
            "join" => say(joined().map(|_| ())),
            "barrier" => {
                let rendezvous = joined().unwrap();
                println!("joined");
                say(rendezvous.barrier("never complete"));
                wait_for_ever();
            }
            "hang" => {
                println!("hanging");
                wait_for_ever();
            }
            "join and hang" => {
                let _rendezvous = joined().unwrap();
                println!("joined");
                wait_for_ever();
            }
            "fork" => fork(joined().unwrap()),
            "descriptor" => {
                let rendezvous = joined().unwrap();
                let members: Vec<Pe> = (0..rendezvous.n_pes()).map(Pe::new).collect();
                let mine = (rendezvous.pe() == members[0]).then(|| {
                    let memory = rustix::fs::memfd_create("shared", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
                    File::from(memory)
                });
                let shared = File::from(rendezvous.share_descriptor(&members, mine.map(Into::into)).unwrap());
                shared.write_all_at(&[1], u64::from(rendezvous.pe().get())).unwrap();
                rendezvous.barrier("written").unwrap();
                println!("{}", shared.metadata().unwrap().len());
                rendezvous.leave().unwrap();
            }
            "share" => {
                let rendezvous = joined().unwrap();
                println!("joined");
                let members: Vec<Pe> = (0..rendezvous.n_pes()).map(Pe::new).collect();
                let mine = (rendezvous.pe() == members[0]).then(|| File::open("/dev/zero").unwrap().into());
                say(rendezvous.share_descriptor(&members, mine).map(|_| ()));
                wait_for_ever();
            }
            "share in little room" => {
                let rendezvous = joined().unwrap();
                let members: Vec<Pe> = (0..rendezvous.n_pes()).map(Pe::new).collect();
                let mine = File::open("/dev/zero").unwrap().into();
                rendezvous.barrier("joined").unwrap();
                let room = std::env::var(ROOM).ok().and_then(|room| room.parse().ok());
                let held = room.map(leave_room_for);
                let start = Instant::now();
                let result = rendezvous.exchange_descriptors(&members, mine).map(|_| ());
                println!("{}", start.elapsed().as_millis());
                say(result);
                drop(held);
                // The failure of that call does not affect the next call.
                rendezvous.barrier("again").unwrap();
                say(rendezvous.exchange_descriptors(&members, File::open("/dev/zero").unwrap().into()).map(|_| ()));
                rendezvous.leave().unwrap();
            }
            "share in no room again and again" => {
                let rendezvous = joined().unwrap();
                let members: Vec<Pe> = (0..rendezvous.n_pes()).map(Pe::new).collect();
                let mut told = Ok(());
                for round in 0..10 {
                    let mine = File::open("/dev/zero").unwrap().into();
                    let held = (rendezvous.pe() == members[0]).then(|| leave_room_for(0));
                    let result = rendezvous.exchange_descriptors(&members, mine);
                    drop(held);
                    if !matches!(result, Err(BootstrapError::Io { .. } | BootstrapError::PeFailed { .. })) {
                        println!("round {round}: {result:?}");
                    }
                    told = told.and(rendezvous.barrier("next"));
                }
                say(told);
                rendezvous.leave().unwrap();
            }
            "share when told" => {
                // The process starts to join only when all processes run.
                println!("started");
                std::io::stdin().read_line(&mut String::new()).unwrap();
                let deadline = PASSES;
                let rendezvous = Rendezvous::join(&Job::from_env().unwrap(), Options { deadline, ..Options::default() }).unwrap();
                println!("joined");
                std::io::stdin().read_line(&mut String::new()).unwrap();
                let start = Instant::now();
                let members = [1, 2].map(Pe::new);
                let result = rendezvous.exchange_descriptors(&members, File::open("/dev/zero").unwrap().into());
                println!("{}", start.elapsed().as_millis());
                say(result.map(|_| ()));
                wait_for_ever();
            }
            other => panic!("no such role: {other}"),
        }
    }

    /// Opens descriptors until this process can open only `count` more. The process keeps them open
    /// until the result is dropped.
    fn leave_room_for(count: usize) -> Vec<File> {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let few = Rlimit { current: Some(64), maximum: getrlimit(Resource::Nofile).maximum };
        setrlimit(Resource::Nofile, few).unwrap();
        let mut held = Vec::new();
        while let Ok(file) = File::open("/dev/null") {
            held.push(file);
        }
        held.truncate(held.len() - count);
        held
    }

    fn wait_for_ever() {
        loop {
            thread::sleep(LONG);
        }
    }

    /// Forks. The child keeps the socket open and tries to make calls as a PE.
    fn fork(rendezvous: Rendezvous) {
        // SAFETY: this process has one thread, so no other thread, which the child would lack, can
        // own a lock.
        match unsafe { libc::fork() } {
            0 => {
                let refused = matches!(rendezvous.barrier("child"), Err(BootstrapError::Forked { .. }));
                println!("refused {refused} {}", std::process::id());
                // This child ends even if the test fails.
                thread::sleep(LONG);
            }
            child => {
                assert!(child > 0);
                wait_for_ever();
            }
        }
    }

    // The scenarios.

    pub(crate) fn scenarios() {
        run_scenarios(&scenarios![
            eight_processes_join_and_exchange_within_30_seconds,
            process_killed_before_it_joins_is_named,
            process_killed_during_the_join_is_named,
            process_killed_after_the_join_is_named,
            processes_of_torchrun_join_and_leave_no_socket,
            killed_pe_0_is_named_and_leaves_no_socket,
            child_that_outlives_its_pe_does_not_hide_the_loss,
            processes_share_memory,
            process_killed_while_sharing_memory_is_named,
            process_out_of_descriptors_is_named,
            reported_failures_do_not_fill_the_store,
            stopped_server_delays_no_exchange_past_its_deadline,
            stopped_server_delays_no_join_past_its_deadline,
        ]);
    }

    fn eight_processes_join_and_exchange_within_30_seconds() {
        let party = Party::new(8);
        let start = Instant::now();
        let mut processes = start_all(&party, "exchange", 0..8);
        for process in &mut processes {
            assert_eq!(process.line(), "8");
        }
        println!("8 processes, start to end of the first exchange: {:?}", start.elapsed());
        assert!(start.elapsed() < LONG / 2);
        party.until(|state| state.left.len() == 8 && state.lost.is_empty());
    }

    fn process_killed_before_it_joins_is_named() {
        let party = Party::new(4);
        let mut processes = start_all(&party, "join", 0..3);
        let mut hanging = Process::start("hang", party.job(3).to_vars());
        assert_eq!(hanging.line(), "hanging");
        party.until(|state| state.joined.len() == 3);
        hanging.kill();
        let since = Instant::now();
        // A launcher reports this when it detects the end of the process.
        party.server.report_lost(Pe::new(3), "signal 9");
        all_name(&mut processes, 3, since);
    }

    fn process_killed_during_the_join_is_named() {
        let party = Party::new(4);
        let mut processes = start_all(&party, "join", 0..3);
        party.until(|state| state.joined.len() == 3);
        let since = Instant::now();
        processes.remove(1).kill();
        all_name(&mut processes, 1, since);
        assert!(party.server.state().lost.contains(&(Pe::new(1), Loss::Disconnected)));
    }

    fn process_killed_after_the_join_is_named() {
        for killed in [0, 3] {
            let party = Party::new(4);
            let mut others = start_all(&party, "barrier", (0..4).filter(|pe| *pe != killed));
            let mut victim = Process::start("join and hang", party.job(killed).to_vars());
            assert_eq!(victim.line(), "joined");
            for process in &mut others {
                assert_eq!(process.line(), "joined");
            }
            let since = Instant::now();
            victim.kill();
            all_name(&mut others, killed, since);
        }
    }

    fn name_of(vars: &[(&'static str, String)]) -> String {
        let find = |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone());
        match Job::from_vars(&find).unwrap().rendezvous {
            Some(Endpoint::Unix(name)) => name,
            other => panic!("{other:?}"),
        }
    }

    fn processes_of_torchrun_join_and_leave_no_socket() {
        let mut processes: Vec<Process> = (0..4).map(|pe| Process::start("exchange", torchrun(pe, 4, 1))).collect();
        for process in &mut processes {
            assert_eq!(process.line(), "4");
            assert!(process.child.wait().unwrap().success());
        }
        assert!(!socket_exists(&name_of(&torchrun(0, 4, 1))));
    }

    fn killed_pe_0_is_named_and_leaves_no_socket() {
        let mut serving = Process::start("join and hang", torchrun(0, 3, 2));
        let mut others: Vec<Process> = (1..3).map(|pe| Process::start("barrier", torchrun(pe, 3, 2))).collect();
        assert_eq!(serving.line(), "joined");
        for process in &mut others {
            assert_eq!(process.line(), "joined");
        }
        let name = name_of(&torchrun(0, 3, 2));
        assert!(socket_exists(&name));
        let since = Instant::now();
        serving.kill();
        all_name(&mut others, 0, since);
        drop(others);
        eventually("the end of the sockets", || !socket_exists(&name));
    }

    fn child_that_outlives_its_pe_does_not_hide_the_loss() {
        let party = Party::new(2);
        let mut waiting = start_all(&party, "barrier", [0]);
        let mut forked = Process::start("fork", party.job(1).to_vars());
        assert_eq!(waiting[0].line(), "joined");
        let line = forked.line();
        let (answer, child) = line.rsplit_once(' ').unwrap();
        assert_eq!(answer, "refused true");
        let since = Instant::now();
        forked.kill();
        all_name(&mut waiting, 1, since);
        let child = rustix::process::Pid::from_raw(child.parse().unwrap()).unwrap();
        rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
    }

    fn processes_share_memory() {
        let party = Party::new(4);
        let mut processes = start_all(&party, "descriptor", 0..4);
        for process in &mut processes {
            assert_eq!(process.line(), "4");
        }
    }

    fn process_killed_while_sharing_memory_is_named() {
        // The killed process is first the leader, for which all others wait, then a member for
        // which the leader waits.
        for killed in [0, 2] {
            let party = Party::new(3);
            let mut others = start_all(&party, "share", (0..3).filter(|pe| *pe != killed));
            let mut victim = Process::start("join and hang", party.job(killed).to_vars());
            assert_eq!(victim.line(), "joined");
            for process in &mut others {
                assert_eq!(process.line(), "joined");
            }
            if killed == 2 {
                // PE 1 gets its descriptor without PE 2.
                assert_eq!(others[1].line(), "ok");
            }
            let since = Instant::now();
            victim.kill();
            if killed == 0 {
                all_name(&mut others, killed, since);
            } else {
                // Only the leader still waits, because PE 1 already has its descriptors.
                all_name(&mut others[..1], killed, since);
            }
        }
    }

    fn process_out_of_descriptors_is_named() {
        // The leader needs one descriptor to listen and two for each other member. A member needs
        // one to connect and one for each other member.
        for (short, rooms) in [(0, 0..5), (2, 0..3)] {
            for room in rooms {
                let party = Party::new(3);
                let mut processes: Vec<Process> = (0..3)
                    .map(|pe| {
                        let room = (pe == short).then(|| (ROOM, room.to_string()));
                        Process::start("share in little room", party.job(pe).to_vars().into_iter().chain(room))
                    })
                    .collect();
                for (pe, process) in (0..).zip(&mut processes) {
                    let what = format!("PE {pe}, PE {short} has room for {room}");
                    let millis: u64 = process.line().parse().expect("the process prints a number");
                    assert!(millis < SOON.as_millis() as u64, "{what}: the error came after {millis} ms");
                    let told = process.line();
                    let is_right = match pe == short {
                        true => told.contains("descriptors") || told.contains("open files"),
                        // A member that has passed its descriptor may still get the descriptors of
                        // the other members.
                        false => told == "ok" || told.starts_with(&format!("PE {short} failed: ")),
                    };
                    assert!(is_right, "{what}: {told}");
                    assert_eq!(process.line(), "ok", "{what}: the next call");
                }
            }
        }
    }

    fn reported_failures_do_not_fill_the_store() {
        let options = ServerOptions { max_stored_bytes: 600, ..ServerOptions::default() };
        let party = Party::with(2, Endpoint::random_unix().unwrap(), options);
        for process in &mut start_all(&party, "share in no room again and again", 0..2) {
            assert_eq!(process.line(), "ok");
        }
    }

    fn stopped_server_delays_no_exchange_past_its_deadline() {
        // The server is stopped before any member connects, or while the first member waits for the
        // second member.
        for waits in [false, true] {
            let mut serving = Process::start("join and hang", torchrun(0, 3, 4 + u32::from(waits)));
            let vars = |pe| torchrun(pe, 3, 4 + u32::from(waits));
            let mut others: Vec<Process> = (1..3).map(|pe| Process::start("share when told", vars(pe))).collect();
            eventually("the server", || socket_exists(&name_of(&vars(0))));
            for process in &mut others {
                assert_eq!(process.line(), "started");
            }
            others.iter_mut().for_each(Process::tell);
            for process in others.iter_mut().chain([&mut serving]) {
                assert_eq!(process.line(), "joined");
            }
            if waits {
                others.truncate(1);
                others[0].tell();
                thread::sleep(Duration::from_millis(100));
            }
            serving.stop();
            if !waits {
                others.iter_mut().for_each(Process::tell);
            }
            for process in &mut others {
                let millis: u64 = process.line().parse().expect("the process prints a number");
                let told = process.line();
                // The deadline is five seconds, followed by one second of grace. The server never
                // continues.
                assert!(millis < SOON.as_millis() as u64, "{waits}: {told} after {millis} ms");
                assert!(told.starts_with("missing") || told.starts_with("lost"), "{told}");
            }
            serving.kill();
        }
    }

    fn stopped_server_delays_no_join_past_its_deadline() {
        let mut serving = Process::start("join and hang", torchrun(0, 2, 3));
        let name = name_of(&torchrun(0, 2, 3));
        eventually("the server", || socket_exists(&name));
        serving.stop();
        let vars = torchrun(1, 2, 3);
        let job = Job::from_vars(&|name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone()));
        let since = Instant::now();
        let options = Options { deadline: Duration::from_millis(300), ..Options::default() };
        let error = Rendezvous::join(&job.unwrap(), options).unwrap_err();
        assert!(matches!(&error, BootstrapError::Timeout { missing, .. } if *missing == [Pe::new(0)]), "{error}");
        assert!(since.elapsed() < SOON);
        serving.kill();
    }
}
