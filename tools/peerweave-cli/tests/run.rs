//! Tests the launcher with small shell programs: exit codes, signals, deadlines, cleanup.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Returns the command that starts a job of `n` PEs that run a shell script.
fn job(n: usize, options: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peerweave"));
    command.arg("run").arg("-n").arg(n.to_string()).args(options).args(["--", "sh", "-c", script]);
    command.env_remove("PEERWEAVE_PE").stdin(Stdio::null());
    command
}

fn run(n: usize, options: &[&str], script: &str) -> Output {
    job(n, options, script).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn sorted_lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// Returns a text that occurs in the arguments of no other process of the machine.
fn unique(name: &str) -> String {
    format!("peerweave-test-{name}-{}-{:?}", std::process::id(), Instant::now()).replace([' ', '{', '}', ':', ','], "_")
}

/// Returns the processes whose arguments contain `text`, except this one.
fn processes_with(text: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let Ok(arguments) = std::fs::read(entry.path().join("cmdline")) else { continue };
        if pid != std::process::id() as i32 && String::from_utf8_lossy(&arguments).contains(text) {
            found.push(pid);
        }
    }
    found
}

/// Time limit of these tests: far more than a launcher needs on a busy machine, and far less than
/// the PEs sleep.
const SOON: Duration = Duration::from_secs(15);

/// Reads until the PEs have printed `ready` `times` times. Returns their output.
fn read_until_ready(stdout: &mut impl Read, times: usize) -> String {
    let mut said = String::new();
    while said.matches("ready").count() < times {
        let mut bytes = [0; 64];
        let count = stdout.read(&mut bytes).unwrap();
        assert!(count > 0, "the job ended early: {said}");
        said += std::str::from_utf8(&bytes[..count]).unwrap();
    }
    said
}

fn wait_until(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + within;
    while !holds() {
        assert!(Instant::now() < end, "timed out after {within:?}: {what}");
        sleep(Duration::from_millis(5));
    }
}

fn rendezvous_sockets() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    table
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().nth(7))
        .filter(|name| name.starts_with("@peerweave-"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn environment_of_a_pe_describes_its_position_in_the_job() {
    let output = run(
        3,
        &["--no-tag"],
        "echo $PEERWEAVE_PE/$PEERWEAVE_N_PES $PEERWEAVE_LOCAL_PE/$PEERWEAVE_LOCAL_N_PES $PEERWEAVE_MACHINE/$PEERWEAVE_N_MACHINES",
    );
    assert!(output.status.success());
    assert_eq!(sorted_lines(&stdout(&output)), ["0/3 0/3 0/1", "1/3 1/3 0/1", "2/3 2/3 0/1"]);
}

#[test]
fn environment_of_a_pe_has_the_variables_of_torchrun() {
    let script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE $MASTER_ADDR $MASTER_PORT";
    let output = run(3, &["--no-tag"], script);
    let text = stdout(&output);
    let lines = sorted_lines(&text);
    let port: u16 = lines[0].rsplit(' ').next().unwrap().parse().unwrap();
    assert!(port > 0);
    assert_eq!(lines, [0, 1, 2].map(|pe| format!("{pe}/3 {pe}/3 0/1 127.0.0.1 {port}")));
    // The port is free: a program can listen there.
    std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
}

#[test]
fn run_accepts_np_and_nproc_per_node_for_the_number_of_pes() {
    for options in
        [&["-np", "2"][..], &["--np", "2"], &["--nproc-per-node", "2"], &["--nproc_per_node=2"], &["--timeout", "30", "-np", "2"]]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_peerweave"));
        command.env_remove("PEERWEAVE_PE").arg("run").args(options).args(["echo", "-np"]);
        let output = command.output().unwrap();
        assert_eq!(sorted_lines(&stdout(&output)), ["[0] -np", "[1] -np"], "{options:?}: {}", stderr(&output));
    }
}

#[test]
fn unknown_option_is_named_in_the_error() {
    for option in ["--hosts", "-x", "--bind-to=core"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_peerweave"));
        let output = command.env_remove("PEERWEAVE_PE").args(["run", option, "-n", "2", "--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{option}");
        let name = option.split('=').next().unwrap();
        assert!(stderr(&output).contains(&format!("unexpected argument '{name}' found")), "{}", stderr(&output));
    }
}

#[test]
fn invalid_token_variable_is_an_error_in_a_one_machine_job() {
    let output = job(1, &[], "true").env("PEERWEAVE_TOKEN", "zz").output().unwrap();
    let text = stderr(&output);
    assert!(!output.status.success() && text.contains("PEERWEAVE_TOKEN") && text.contains("64 hexadecimal digits"), "{text}");
}

#[test]
fn open_file_limit_error_names_the_limit_and_the_needed_number() {
    let peerweave = env!("CARGO_BIN_EXE_peerweave");
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -n 20; exec {peerweave} run -n 2 -- true")]).env_remove("PEERWEAVE_PE");
    let output = shell.stdin(Stdio::null()).output().unwrap();
    let text = stderr(&output);
    assert!(
        text.contains("the limit of open files is 20, but about 30 files are needed for 2 PEs; raise the limit with `ulimit -n`"),
        "{text}"
    );
}

#[test]
fn panic_is_reported_without_the_backtrace_note() {
    let script = "printf '\\nthread main panicked\\n' >&2; printf \"thread 'main' (7) panicked at src/main.rs:2:5:\\nthe disk is full\\n\" >&2; \
                  echo 'note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace' >&2; exit 101";
    let output = run(1, &["--tag"], script);
    assert_eq!(output.status.code(), Some(101));
    let told = "its last line on stderr: thread 'main' (7) panicked at src/main.rs:2:5: the disk is full\n";
    assert!(stderr(&output).contains(told), "{}", stderr(&output));
}

#[test]
fn environment_of_a_pe_has_rendezvous_address_and_token() {
    let output = run(2, &["--no-tag"], "echo $PEERWEAVE_RENDEZVOUS ${#PEERWEAVE_TOKEN}");
    let text = stdout(&output);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert_eq!(lines[0], lines[1]);
    assert!(lines[0].starts_with("unix:@peerweave-") && lines[0].ends_with(" 64"), "{text}");
}

#[test]
fn lines_are_tagged_with_the_pe_by_default_if_several_pes_run() {
    assert_eq!(sorted_lines(&stdout(&run(2, &[], "echo hello"))), ["[0] hello", "[1] hello"]);
    assert_eq!(stdout(&run(1, &[], "echo hello")), "hello\n");
    assert_eq!(stdout(&run(1, &["--tag"], "echo hello")), "[0] hello\n");
    assert_eq!(stderr(&run(1, &["--tag"], "echo hello >&2")), "[0] hello\n");
    let wide = stdout(&run(11, &[], "echo x"));
    assert!(wide.contains("[ 0] x\n") && wide.contains("[10] x\n"), "{wide}");
}

#[test]
fn last_output_line_without_a_line_end_is_printed() {
    assert_eq!(sorted_lines(&stdout(&run(2, &[], "printf a; printf b"))), ["[0] ab", "[1] ab"]);
}

#[test]
fn long_lines_of_several_pes_do_not_mix() {
    // Each line is longer than a pipe accepts at once, so it is written in many pieces.
    let script = "c=$(printf abcdefghij | tr a-j $PEERWEAVE_PE); l=$c; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13; do l=$l$l; done; \
                  for i in 1 2 3 4 5; do printf %s $l; printf '%s\\n' $l; done";
    let output = run(4, &[], script);
    let text = stdout(&output);
    assert_eq!(text.lines().count(), 20);
    for line in text.lines() {
        let pe = &line[1..2];
        assert_eq!(line.len(), 4 + 2 * 10 * 8192);
        assert!(line[4..].bytes().all(|byte| byte == pe.as_bytes()[0]), "a foreign byte in a line of PE {pe}");
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = job(2, &[], "echo hello").stdout(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("peerweave: cannot write to standard output: No space left"), "{}", stderr(&output));
}

#[test]
fn exit_code_is_unchanged_if_a_message_cannot_be_written() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peerweave"));
    command.env_remove("PEERWEAVE_PE").args(["run", "-n", "2", "--nnodes", "2", "--rendezvous", "nowhere", "--", "true"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--rendezvous is \"nowhere\", expected HOST:PORT"), "{}", stderr(&output));
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    assert_eq!(command.stderr(full).status().unwrap().code(), Some(2));
}

#[test]
fn slow_reader_of_the_output_receives_all_lines() {
    let mut child = job(2, &["--no-tag"], "seq 1 200000").stdout(Stdio::piped()).spawn().unwrap();
    sleep(Duration::from_millis(300));
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(text.lines().count(), 400_000);
}

#[test]
fn job_ends_if_the_reader_of_its_output_closes_the_pipe() {
    let mut child = job(2, &[], "yes").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let start = Instant::now();
    assert!(!child.wait().unwrap().success());
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[test]
fn standard_input_reaches_only_pe_0() {
    let mut child = job(2, &[], "wc -c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"12345").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(sorted_lines(&stdout(&output)), ["[0] 5", "[1] 0"]);
}

#[test]
fn exit_code_and_stderr_of_the_first_failed_pe_are_reported() {
    let start = Instant::now();
    let output = run(3, &[], "if [ $PEERWEAVE_PE = 1 ]; then echo the disk is full >&2; exit 7; fi; exec sleep 30");
    assert_eq!(output.status.code(), Some(7));
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let text = stderr(&output);
    assert!(text.contains("PE 1 (process ") && text.contains(") exited with status 7"), "{text}");
    assert!(text.contains("its last line on stderr: the disk is full"), "{text}");
}

#[test]
fn killed_pe_gives_exit_code_128_plus_the_signal() {
    let output = run(2, &[], "[ $PEERWEAVE_PE = 1 ] && kill -9 $$; exec sleep 30");
    assert_eq!(output.status.code(), Some(137));
    assert!(stderr(&output).contains("PE 1 (process "), "{}", stderr(&output));
    assert!(stderr(&output).contains("was killed by signal 9 (SIGKILL)"), "{}", stderr(&output));
    assert_eq!(run(1, &[], "kill -SEGV $$").status.code(), Some(139));
}

#[test]
fn pes_that_exit_soon_after_a_failure_are_not_killed() {
    let output = run(2, &[], "if [ $PEERWEAVE_PE = 0 ]; then exit 3; fi; sleep 0.3; echo orderly; exit 4");
    assert_eq!(output.status.code(), Some(3));
    assert!(stdout(&output).contains("[1] orderly"));
}

#[test]
fn pes_that_ignore_sigterm_are_killed_soon() {
    let start = Instant::now();
    let output = run(2, &[], "trap '' TERM; [ $PEERWEAVE_PE = 0 ] && exit 1; while :; do sleep 0.1; done");
    assert_eq!(output.status.code(), Some(1));
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[test]
fn option_continue_keeps_other_pes_running_after_a_failure() {
    let script = r#"case $PEERWEAVE_PE in 1) kill -KILL $$;; 2) exit 5;; *) sleep 3.5; echo done;; esac"#;
    let output = run(4, &["--on-failure=continue"], script);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(sorted_lines(&stdout(&output)), ["[0] done", "[3] done"], "PEs 0 and 3 must run for 3.5 s after the failure");
    let text = stderr(&output);
    assert!(text.contains("PE 1 (process ") && text.contains("was killed by signal 9 (SIGKILL)"), "{text}");
    assert!(text.contains("PE 2 (process ") && text.contains("exited with status 5"), "{text}");
    // `abort` is the default, and can also be given explicitly.
    for options in [&[][..], &["--on-failure=abort"]] {
        assert_eq!(run(2, options, r#"[ $PEERWEAVE_PE = 0 ] || exit 4; exec sleep 100"#).status.code(), Some(4));
    }
}

#[test]
fn option_continue_makes_a_job_fail_only_if_all_pes_fail() {
    let status = |script: &str| run(3, &["--on-failure", "continue"], script).status.code();
    assert_eq!(status(r#"sleep 0.$((PEERWEAVE_PE * 4)); exit $((PEERWEAVE_PE + 10))"#), Some(12));
    assert_eq!(status(r#"[ $PEERWEAVE_PE = 0 ] || kill -TERM $$; sleep 0.5; exit 7"#), Some(7));
    assert_eq!(status(r#"[ $PEERWEAVE_PE = 0 ] && exit 0; sleep 0.5; exit 7"#), Some(0));
    let output = run(1, &["--on-failure=wait"], "true");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("abort") && stderr(&output).contains("continue"), "{}", stderr(&output));
    let output = run(2, &["--on-failure=continue", "--timeout=500ms"], r#"[ $PEERWEAVE_PE = 0 ] && exit 3; exec sleep 100"#);
    assert_eq!(output.status.code(), Some(124), "{}", stderr(&output));
}

#[test]
fn stopped_pe_is_reported_when_all_other_pes_have_ended() {
    let script = r#"case $PEERWEAVE_PE in 0) exit 0;; 1) exit 3;; *) kill -STOP $$;; esac"#;
    for options in [["--on-failure=continue", "--timeout=12s"], ["--on-failure=abort", "--timeout=12s"]] {
        let others_fail = options[0] == "--on-failure=continue";
        let output = run(3, &options, if others_fail { script } else { r#"[ $PEERWEAVE_PE = 2 ] || exit 0; kill -STOP $$"# });
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(124), "{text}");
        let named = text.lines().filter(|line| line.contains("the other PEs have ended; still running: PE 2 (process "));
        let named: Vec<_> = named.collect();
        assert_eq!(named.len(), 1, "{text}");
        assert!(named[0].contains(", stopped)") && named[0].contains("--timeout"), "{text}");
    }
}

#[test]
fn timed_out_job_exits_with_124_and_names_the_running_pes() {
    let start = Instant::now();
    let output = run(3, &["--timeout", "300ms"], "[ $PEERWEAVE_PE = 1 ] && exit 0; exec sleep 30");
    assert_eq!(output.status.code(), Some(124));
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert!(stderr(&output).contains("--timeout of 300ms expired; still running: PE 0, PE 2"), "{}", stderr(&output));
}

#[test]
fn signals_are_forwarded_to_every_pe() {
    for (signal, name) in [("INT", 2), ("TERM", 15), ("HUP", 1), ("USR1", 10), ("USR2", 12)] {
        let script = format!("trap 'echo got; exit 0' {signal}; echo ready; while :; do sleep 0.02; done");
        let mut child = job(2, &[], &script).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        let mut text = read_until_ready(&mut out, 2);
        kill(name, child.id() as i32);
        out.read_to_string(&mut text).unwrap();
        assert_eq!(text.matches("got").count(), 2, "{signal}: {text}");
        assert!(child.wait().unwrap().success(), "{signal}");
    }
}

#[test]
fn signal_that_no_pe_handles_sets_the_exit_code_of_the_job() {
    let mut child = job(2, &[], "echo ready; exec sleep 30").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    read_until_ready(child.stdout.as_mut().unwrap(), 2);
    kill(15, child.id() as i32);
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn second_interrupt_kills_the_pes() {
    let script = "trap '' INT; echo ready; while :; do sleep 0.02; done";
    let mut child = job(2, &[], script).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    read_until_ready(child.stdout.as_mut().unwrap(), 2);
    kill(2, child.id() as i32);
    sleep(Duration::from_millis(200));
    assert!(child.try_wait().unwrap().is_none(), "the program handles the first signal");
    kill(2, child.id() as i32);
    assert_eq!(child.wait().unwrap().code(), Some(137));
}

#[test]
fn killed_launcher_leaves_no_process() {
    let mark = unique("orphan");
    // Each PE has a child in the background and a child in the foreground.
    let script = format!(": {mark}; sh -c 'sleep 60; : {mark}' & sh -c 'sleep 60; : {mark}'");
    let mut child = job(3, &[], &script).stdout(Stdio::null()).process_group(0).spawn().unwrap();
    wait_until("all processes started", SOON, || processes_with(&mark).len() >= 10);
    kill(9, child.id() as i32);
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    wait_until("all processes ended", SOON, || processes_with(&mark).is_empty());
}

/// Makes this thread the tracer of the process that the command starts.
fn traced(mut command: Command) -> Command {
    // SAFETY: the closure makes one system call, which has no effect on memory.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    command
}

/// Stops a launcher that this thread traces, when the launcher has just forked the first PE.
fn stop_at_fork(launcher: &Child) {
    let pid = launcher.id() as i32;
    let wait_for = |pid: i32| {
        let mut status = 0;
        // SAFETY: `status` is an `i32` of this function.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) }, pid);
        assert!(libc::WIFSTOPPED(status), "status {status:#x}");
        status >> 8
    };
    let trace = |request, pid: i32, data: libc::c_long| {
        // SAFETY: the requests below access no registers and no memory of the tracee. `data` is a
        // number, or the address of a `c_ulong` that lives during the call.
        assert_eq!(unsafe { libc::ptrace(request, pid, 0, data) }, 0, "{}", std::io::Error::last_os_error());
    };
    let mut stop = wait_for(pid);
    let options = libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK | libc::PTRACE_O_EXITKILL;
    trace(libc::PTRACE_SETOPTIONS, pid, options.into());
    loop {
        let event = stop >> 8;
        if event == libc::PTRACE_EVENT_FORK || event == libc::PTRACE_EVENT_VFORK {
            let mut child: libc::c_ulong = 0;
            trace(libc::PTRACE_GETEVENTMSG, pid, (&raw mut child) as libc::c_long);
            wait_for(child as i32);
            trace(libc::PTRACE_DETACH, child as i32, 0);
        }
        if event == libc::PTRACE_EVENT_FORK {
            return; // This is a PE: the launcher starts the guard by `vfork`.
        }
        let signal = if event == 0 && stop != libc::SIGTRAP { stop } else { 0 };
        trace(libc::PTRACE_CONT, pid, signal.into());
        stop = wait_for(pid);
    }
}

#[test]
fn launcher_killed_while_starting_a_pe_leaves_no_process() {
    let mark = unique("forked");
    let script = format!(": {mark}; sh -c 'sleep 60; : {mark}' & sh -c 'sleep 60; : {mark}'");
    let mut launcher = traced(job(2, &[], &script)).spawn().unwrap();
    stop_at_fork(&launcher);
    // The launcher, the PE, and what the PE started.
    wait_until("the first PE runs", SOON, || processes_with(&mark).len() >= 4);
    launcher.kill().unwrap();
    assert_eq!(launcher.wait().unwrap().signal(), Some(9));
    wait_until("all processes ended", SOON, || processes_with(&mark).is_empty());
}

#[test]
fn launcher_killed_at_a_random_instant_leaves_no_process() {
    let kills: u32 = std::env::var("PEERWEAVE_KILLS").map_or(25, |text| text.parse().unwrap());
    let mark = unique("random");
    let script = format!(": {mark}; sh -c 'sleep 60; : {mark}' & sh -c 'sleep 60; : {mark}'");
    for at in 0..kills {
        let mut launcher = job(3, &[], &script).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let nanos = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
        let delay = Duration::from_micros(u64::from(nanos / 7 % 20_000));
        sleep(delay);
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        wait_until(&format!("all processes ended after kill {at} at {delay:?}"), SOON, || processes_with(&mark).is_empty());
    }
}

#[test]
fn successful_job_leaves_no_process() {
    let mark = unique("left");
    // Starts one process in the PE's process group and one in its own session.
    let script = format!("sh -c 'sleep 60; : {mark}' & setsid sh -c 'sleep 60; : {mark}' & sleep 0.1; exit 0");
    let start = Instant::now();
    let output = run(2, &[], &script);
    assert!(output.status.success());
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!(processes_with(&mark), [0; 0]);
}

#[test]
fn finished_job_leaves_no_socket() {
    let output = run(2, &["--no-tag"], "echo $PEERWEAVE_RENDEZVOUS");
    let text = stdout(&output);
    let name = text.lines().next().unwrap().strip_prefix("unix:").unwrap();
    assert!(!rendezvous_sockets().iter().any(|socket| socket == name), "{name} is still there");
}

#[test]
fn pes_inherit_no_open_file_of_the_launcher() {
    let files = |command: &mut Command| -> Vec<String> {
        let output = command.env_remove("PEERWEAVE_PE").stdin(Stdio::null()).output().unwrap();
        sorted_lines(&stdout(&output)).into_iter().map(str::to_owned).collect()
    };
    // Both lists contain the files that the test runner left open.
    let alone = files(Command::new("ls").arg("/proc/self/fd"));
    let pe = files(Command::new(env!("CARGO_BIN_EXE_peerweave")).args(["run", "-n", "1", "--tag", "--", "ls", "/proc/self/fd"]));
    let pe: Vec<_> = pe.iter().map(|line| line.strip_prefix("[0] ").unwrap()).collect();
    assert_eq!(pe, alone);
}

#[test]
fn job_that_cannot_start_exits_with_2_126_or_127() {
    let start = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_peerweave"));
        command.env_remove("PEERWEAVE_PE").arg("run").args(arguments).output().unwrap()
    };
    let output = start(&["-n", "2", "--", "no-such-program-anywhere"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(stderr(&output).contains("no-such-program-anywhere: not found in PATH or in "), "{}", stderr(&output));
    assert_eq!(start(&["-n", "2", "--", "/"]).status.code(), Some(126));
    assert_eq!(start(&["-n", "2", "--", "./no/such"]).status.code(), Some(127));
    for wrong in [&["-n", "0", "--", "true"][..], &["-n", "x", "--", "true"], &["-n", "2"], &["--nnodes", "2", "--", "true"]] {
        assert_eq!(start(wrong).status.code(), Some(2), "{wrong:?}");
    }
    let output = start(&["--nnodes", "2", "--node-rank", "2", "--rendezvous", "localhost:1", "--", "true"]);
    assert!(stderr(&output).contains("--node-rank is 2, expected less than 2 (--nnodes)"), "{}", stderr(&output));
}

#[test]
fn arguments_reach_the_program_unchanged() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peerweave"));
    command.env_remove("PEERWEAVE_PE").args(["run", "-n", "1", "printf", "%s\n", "-n", "--tag", "a b", "--"]);
    assert_eq!(stdout(&command.output().unwrap()), "-n\n--tag\na b\n--\n");
}

#[test]
fn nested_job_is_refused_if_variable_peerweave_pe_is_set() {
    let this = env!("CARGO_BIN_EXE_peerweave");
    let output = run(1, &[], &format!("{this} run -n 1 -- true"));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("this process is already PE 0 of a job"), "{}", stderr(&output));
    let output = run(1, &[], &format!("env -u PEERWEAVE_PE {this} run -n 2 -- sh -c 'echo $PEERWEAVE_N_PES'"));
    assert_eq!(sorted_lines(&stdout(&output)), ["[0] 2", "[1] 2"]);
}

#[test]
fn pes_are_numbered_across_two_machines() {
    let start = |rank: &str, port: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_peerweave"));
        command.env_remove("PEERWEAVE_PE").args(["run", "-n", "2", "--no-tag", "--nnodes", "2", "--node-rank", rank]);
        command.args(["--rendezvous", &format!("127.0.0.1:{port}"), "--", "sh", "-c"]);
        command.arg("echo $PEERWEAVE_PE/$PEERWEAVE_N_PES $PEERWEAVE_LOCAL_PE/$PEERWEAVE_LOCAL_N_PES $PEERWEAVE_MACHINE/$PEERWEAVE_N_MACHINES $PEERWEAVE_RENDEZVOUS $PEERWEAVE_TOKEN");
        stdout(&command.output().unwrap())
    };
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let (one, two) = (start("0", &port), start("1", &port));
    let split = |text: &str| -> Vec<String> { sorted_lines(text).into_iter().map(str::to_owned).collect() };
    let (one, two) = (split(&one), split(&two));
    assert!(one[0].starts_with(&format!("0/4 0/2 0/2 tcp:127.0.0.1:{port} ")), "{one:?}");
    assert!(two[1].starts_with(&format!("3/4 1/2 1/2 tcp:127.0.0.1:{port} ")), "{two:?}");
    let token = |line: &str| line.rsplit(' ').next().unwrap().to_owned();
    assert_eq!(token(&one[0]), token(&two[1]));
    assert_eq!(token(&one[0]).len(), 64);
}

fn kill(signal: i32, pid: i32) {
    let status = Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).status().unwrap();
    assert!(status.success());
}

#[test]
fn unix_signal_repeated_within_100_ms_counts_once() {
    // Sends the signal to the launcher and to its process group, as `timeout` does.
    let mut at_once = 0;
    while at_once < 4 {
        let script = "trap 'sleep 0.3; echo clean; exit' TERM; echo ready; while :; do sleep 0.02; done";
        let mut launcher = job(2, &["--no-tag"], script).process_group(0).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = launcher.stdout.take().unwrap();
        let mut said = read_until_ready(&mut stdout, 2);
        let pid = rustix::process::Pid::from_child(&launcher);
        let first = Instant::now();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        sleep(Duration::from_millis(2));
        rustix::process::kill_process_group(pid, rustix::process::Signal::TERM).unwrap();
        let between = first.elapsed();
        stdout.read_to_string(&mut said).unwrap();
        launcher.wait().unwrap();
        // On a busy machine the two signals may arrive so far apart that they count as two
        // requests.
        if between < Duration::from_millis(20) {
            assert_eq!(said.matches("clean").count(), 2, "{said}");
            at_once += 1;
        }
    }
}
