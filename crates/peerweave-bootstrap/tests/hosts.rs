//! Tests of the hosts of PEs: identification by `NCCL_HOSTID`, and exchange among PEs.

use std::process::Command;

use peerweave_bootstrap::{Host, Options, Pe, Rendezvous, Server};

/// Variable that is set only in the child process, which is a copy of this program.
const CHILD: &str = "TEST_HOST_CHILD";

#[test]
fn nccl_hostid_names_the_host_of_a_process() {
    if std::env::var_os(CHILD).is_some() {
        assert_eq!(Host::here(), Host::named("h7"));
        assert_eq!(Host::here().name(), "h7");
        return;
    }
    let run = |id: &str| {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "nccl_hostid_names_the_host_of_a_process"]);
        program.env(CHILD, "1").env("NCCL_HOSTID", id).output().unwrap().status.success()
    };
    assert!(run("h7"));
    assert!(!run("h8"), "h7 and h8 are the same host");
    assert!(!run(""), "an empty NCCL_HOSTID is the same host as h7");
}

#[test]
fn all_pes_get_the_same_list_of_hosts() {
    let (_server, jobs) = Server::on_this_machine(3).unwrap();
    std::thread::scope(|scope| {
        for (job, host) in jobs.iter().zip(["b", "a", "b"]) {
            scope.spawn(move || {
                let options = Options { host: Some(Host::named(host)), ..Options::default() };
                let rendezvous = Rendezvous::join(job, options).unwrap();
                assert_eq!(rendezvous.host(), &Host::named(host));
                let hosts = rendezvous.hosts().unwrap();
                assert_eq!((hosts.len(), hosts.of(Pe::new(0)), hosts.of(Pe::new(1))), (2, 0, 1));
                assert_eq!(hosts.name_of(job.pe), host);
                assert_eq!(hosts.pes(hosts.of(Pe::new(2))).collect::<Vec<_>>(), [Pe::new(0), Pe::new(2)]);
                rendezvous.leave().unwrap();
            });
        }
    });
}
