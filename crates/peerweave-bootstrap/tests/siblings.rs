//! Tests with PEs of torchrun whose processes end before they connect. Each such PE is reported
//! soon. Processes that only seem to end are not reported.
//!
//! This process is the agent, and its children are the PEs.

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
    use std::process::{Command, Stdio};
    use std::thread;
    use std::time::{Duration, Instant};

    use peerweave_bootstrap::{Job, Options, Rendezvous};

    use crate::common::process::{Process, ROLE, run_scenarios, say, torchrun};
    use crate::common::{LONG, SOON};
    use crate::scenarios;

    /// Longer than the time for which a rank may have no process before the rank is reported.
    const A_WHILE: Duration = Duration::from_millis(1000);

    pub(crate) fn role(role: &str) {
        let join = || Rendezvous::join(&Job::from_env().unwrap(), Options { deadline: LONG, ..Options::default() });
        match role {
            // The answer is printed before any PE leaves, because PEs that still wait would then
            // get a PE that left as the cause.
            "join" => match join() {
                Ok(rendezvous) => {
                    let met = rendezvous.barrier("all have come");
                    say(met.and_then(|()| rendezvous.leave()));
                }
                Err(error) => {
                    println!("{error}");
                    say(Err(error));
                }
            },
            "hang" => {
                println!("hanging");
                thread::sleep(LONG * 2);
            }
            "end" => {}
            "run a helper, then join" => {
                // Starts a copy of this program with this PE's variables, as a library may do.
                let helper = Command::new(std::env::current_exe().unwrap()).env(ROLE, "end").status().unwrap();
                assert!(helper.success());
                thread::sleep(A_WHILE);
                self::role("join");
            }
            "go on in a child" => {
                println!("going");
                thread::sleep(Duration::from_millis(200));
                #[expect(clippy::zombie_processes, reason = "the child outlives this process")]
                let _child = Command::new(std::env::current_exe().unwrap()).env(ROLE, "wait, then join").spawn().unwrap();
            }
            "wait, then join" => {
                thread::sleep(A_WHILE);
                self::role("join");
            }
            other => panic!("no such role: {other}"),
        }
    }

    pub(crate) fn scenarios() {
        run_scenarios(&scenarios![
            process_that_ends_before_it_joins_is_named,
            shell_that_execs_the_program_counts_as_the_pe,
            helper_that_ends_is_not_reported_as_dead,
            program_that_continues_in_a_child_is_not_dead,
            restarted_process_of_a_rank_can_still_join,
            program_of_another_job_is_ignored,
        ]);
    }

    fn all_join(processes: &mut [Process]) {
        for process in processes {
            assert_eq!(process.line(), "ok");
        }
    }

    fn process_that_ends_before_it_joins_is_named() {
        for (round, victim) in [0, 1, 3].into_iter().enumerate() {
            let port = 10 + round as u32;
            let mut hanging = Process::start("hang", torchrun(victim, 4, port));
            assert_eq!(hanging.line(), "hanging");
            let others = (0..4).filter(|&pe| pe != victim);
            let mut others: Vec<Process> = others.map(|pe| Process::start("join", torchrun(pe, 4, port))).collect();
            // PE 0 searches for processes. While PE 0's server is missing, every PE searches.
            let searching = if victim == 0 { 3 } else { 1 };
            others[..searching].iter().for_each(Process::search);
            let since = Instant::now();
            hanging.kill();
            for process in &mut others {
                let said = process.line();
                assert!(
                    said.contains(") ended before the PE joined") && said.contains(&hanging.child.id().to_string()),
                    "{said}"
                );
                assert_eq!(process.line(), format!("lost {victim}"));
            }
            assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
        }
    }

    fn shell_that_execs_the_program_counts_as_the_pe() {
        let program = std::env::current_exe().unwrap();
        let mut shell = Command::new("sh");
        shell.arg("-c").arg("sleep 0.3; exec \"$0\"").arg(program).env(ROLE, "hang").envs(torchrun(1, 2, 20));
        let mut shell = Process::of(shell.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut other = Process::start("join", torchrun(0, 2, 20));
        // The first `sleep` of the shell is not a PE.
        assert_eq!(shell.line(), "hanging");
        other.search();
        shell.kill();
        assert!(other.line().contains("ended before the PE joined"));
        assert_eq!(other.line(), "lost 1");
    }

    fn helper_that_ends_is_not_reported_as_dead() {
        let roles = ["join", "run a helper, then join", "join"];
        let mut processes: Vec<Process> = (0..).zip(roles).map(|(pe, role)| Process::start(role, torchrun(pe, 3, 21))).collect();
        all_join(&mut processes);
    }

    fn program_that_continues_in_a_child_is_not_dead() {
        for victim in [0, 1] {
            let port = 22 + victim;
            let mut going = Process::start("go on in a child", torchrun(victim, 2, port));
            assert_eq!(going.line(), "going");
            let mut other = Process::start("join", torchrun(1 - victim, 2, port));
            all_join(std::slice::from_mut(&mut other));
            assert_eq!(going.line(), "ok", "the child of the process did not join");
        }
    }

    fn restarted_process_of_a_rank_can_still_join() {
        let mut hanging = Process::start("hang", torchrun(1, 2, 24));
        assert_eq!(hanging.line(), "hanging");
        let mut first = Process::start("join", torchrun(0, 2, 24));
        first.search();
        // PE 0 does not run while the rank has no process, because that time may be long on a
        // loaded machine.
        first.stop();
        hanging.child.kill().unwrap();
        let mut second = Process::start("join", torchrun(1, 2, 24));
        first.resume();
        all_join(std::slice::from_mut(&mut first));
        all_join(std::slice::from_mut(&mut second));
    }

    fn program_of_another_job_is_ignored() {
        let mut hanging = Process::start("hang", torchrun(1, 2, 25));
        assert_eq!(hanging.line(), "hanging");
        let mut first = Process::start("join", torchrun(0, 2, 26));
        thread::sleep(A_WHILE / 2);
        hanging.kill();
        thread::sleep(A_WHILE);
        let mut second = Process::start("join", torchrun(1, 2, 26));
        all_join(std::slice::from_mut(&mut first));
        all_join(std::slice::from_mut(&mut second));
    }
}
