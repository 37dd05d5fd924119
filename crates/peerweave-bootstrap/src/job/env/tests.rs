//! Tests with the environments that launchers set, in a table. The environment of the process
//! itself is never changed.

use std::collections::HashMap;

use super::*;

/// Parses `NAME=value NAME=value ..` and returns the job.
fn job(environment: &str) -> Result<Job, BootstrapError> {
    let vars: HashMap<String, String> = environment
        .split_whitespace()
        .map(|assignment| assignment.split_once('=').unwrap())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    Job::from_vars(&|name: &str| vars.get(name).cloned())
}

fn place(job: &Job) -> [u32; 6] {
    [job.pe.get(), job.n_pes, job.local_pe, job.local_n_pes, job.machine, job.n_machines]
}

const HEX: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

#[test]
fn pe_position_is_read_from_the_variables_of_each_launcher() {
    let ours = format!("PEERWEAVE_PE=3 PEERWEAVE_N_PES=4 PEERWEAVE_RENDEZVOUS=unix:@x PEERWEAVE_TOKEN={HEX}");
    let ours_across = format!(
        "PEERWEAVE_PE=5 PEERWEAVE_N_PES=8 PEERWEAVE_LOCAL_PE=1 PEERWEAVE_LOCAL_N_PES=4 PEERWEAVE_MACHINE=1 \
         PEERWEAVE_N_MACHINES=2 PEERWEAVE_RENDEZVOUS=tcp:10.0.0.1:777 PEERWEAVE_TOKEN={HEX} PEERWEAVE_INTERFACE=ib0"
    );
    let torch = "MASTER_ADDR=node7 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none";
    let torch_one = format!("{torch} RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 GROUP_WORLD_SIZE=1");
    let torch_two = format!("{torch} RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2");
    let torch_uneven = format!("{torch} RANK=4 WORLD_SIZE=5 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=1 GROUP_WORLD_SIZE=2");
    let ompi = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=4 \
                PMIX_RANK=2 PMIX_NAMESPACE=prterun-node7-42@1";
    let ompi_4 = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 \
                  OMPI_MCA_ess_base_jobid=77 PEERWEAVE_RENDEZVOUS=tcp:node7:5000";
    let pmix = "PMIX_RANK=1 PMIX_NAMESPACE=job PEERWEAVE_N_PES=2 PEERWEAVE_LOCAL_N_PES=2";
    let mpich = "PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4 PEERWEAVE_RENDEZVOUS=unix:@x";
    let mpich_two = "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PEERWEAVE_RENDEZVOUS=tcp:node7:5000";
    let pmi = "PMI_RANK=1 PMI_SIZE=2 PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=2 PEERWEAVE_RENDEZVOUS=unix:@x";
    let hydra_in_slurm = "SLURM_JOB_ID=42 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_NNODES=1 PMI_RANK=2 PMI_SIZE=4 \
                          MPI_LOCALRANKID=2 MPI_LOCALNRANKS=4 PEERWEAVE_RENDEZVOUS=unix:@x";
    let slurm = "SLURM_JOB_ID=42 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_LOCALID=1 SLURM_NNODES=1 SLURM_NODEID=0";
    let slurm_pmi2 = format!("{slurm} PMI_RANK=1 PMI_SIZE=4 PMI_FD=9");
    let slurm_two = "SLURM_JOB_ID=42 SLURM_STEP_ID=3 SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=7 SLURM_NTASKS=99 SLURM_LOCALID=1 \
                     SLURM_NODEID=1 SLURM_STEP_NUM_NODES=2 SLURM_NNODES=9 SLURM_STEP_TASKS_PER_NODE=4,3 \
                     SLURM_TASKS_PER_NODE=11(x9) SLURM_STEP_NODELIST=gpu[03,7-9] SLURM_JOB_NODELIST=gpu[01-09]";

    let table: [(&str, Launcher, Served, [u32; 6]); 16] = [
        ("HOME=/srv/me RANK=7", Launcher::Single, Served::ByPe0, [0, 1, 0, 1, 0, 1]),
        (&ours, Launcher::Peerweave, Served::ByLauncher, [3, 4, 3, 4, 0, 1]),
        (&ours_across, Launcher::Peerweave, Served::ByLauncher, [5, 8, 1, 4, 1, 2]),
        (&torch_one, Launcher::Torchrun, Served::ByPe0, [1, 2, 1, 2, 0, 1]),
        (&torch_two, Launcher::Torchrun, Served::ByPe0, [5, 8, 1, 4, 1, 2]),
        (&torch_uneven, Launcher::Torchrun, Served::ByPe0, [4, 5, 0, 1, 1, 2]),
        (ompi, Launcher::OpenMpi, Served::ByPe0, [2, 4, 2, 4, 0, 1]),
        (ompi_4, Launcher::OpenMpi, Served::ByPe0, [3, 4, 1, 2, 1, 2]),
        (pmix, Launcher::OpenMpi, Served::ByPe0, [1, 2, 1, 2, 0, 1]),
        (mpich, Launcher::Mpich, Served::ByPe0, [1, 4, 1, 4, 0, 1]),
        (mpich_two, Launcher::Mpich, Served::ByPe0, [3, 4, 1, 2, 1, 2]),
        (pmi, Launcher::Mpich, Served::ByPe0, [1, 2, 1, 2, 0, 1]),
        (hydra_in_slurm, Launcher::Mpich, Served::ByPe0, [2, 4, 2, 4, 0, 1]),
        (slurm, Launcher::Slurm, Served::ByPe0, [1, 4, 1, 4, 0, 1]),
        (&slurm_pmi2, Launcher::Slurm, Served::ByPe0, [1, 4, 1, 4, 0, 1]),
        (slurm_two, Launcher::Slurm, Served::ByPe0, [5, 7, 1, 3, 1, 2]),
    ];
    for (environment, launcher, served, at) in table {
        let job = job(environment).unwrap_or_else(|error| panic!("{environment}: {error}"));
        assert_eq!((job.launcher, job.served, place(&job)), (launcher, served, at), "{environment}");
        assert_eq!(job.rendezvous.is_some(), job.n_pes > 1, "{environment}");
        job.check("test").unwrap();
    }

    let across = |environment: &str| job(environment).unwrap().rendezvous.unwrap();
    assert_eq!(across(&ours_across), Endpoint::Tcp("10.0.0.1".into(), 777));
    assert_eq!(across(&torch_two), Endpoint::Tcp("node7".into(), 29501));
    assert_eq!(across(ompi_4), Endpoint::Tcp("node7".into(), 5000));
    assert!(matches!(across(slurm_two), Endpoint::Tcp(host, 20_000..32_768) if host == "gpu03"));
    assert_eq!(job(&ours_across).unwrap().interface.as_deref(), Some("ib0"));
}

#[test]
fn error_for_an_invalid_environment_names_the_variable() {
    let ours = format!("PEERWEAVE_RENDEZVOUS=unix:@x PEERWEAVE_TOKEN={HEX}");
    let torch = "MASTER_ADDR=node7 MASTER_PORT=29500";
    let slurm = "SLURM_JOB_ID=42 SLURM_STEP_ID=0";
    let table = [
        ("PEERWEAVE_PE=0".to_owned(), "PEERWEAVE_N_PES"),
        (format!("{ours} PEERWEAVE_PE=4 PEERWEAVE_N_PES=4"), "PEERWEAVE_PE"),
        (format!("{ours} PEERWEAVE_PE=-1 PEERWEAVE_N_PES=4"), "PEERWEAVE_PE"),
        (format!("{ours} PEERWEAVE_PE=0 PEERWEAVE_N_PES=0"), "PEERWEAVE_N_PES"),
        (format!("{ours} PEERWEAVE_PE=0 PEERWEAVE_N_PES=65537"), "PEERWEAVE_N_PES"),
        (format!("{ours} PEERWEAVE_PE=0 PEERWEAVE_N_PES=99999999999"), "PEERWEAVE_N_PES"),
        (format!("{ours} PEERWEAVE_PE=0 PEERWEAVE_N_PES=4 PEERWEAVE_LOCAL_N_PES=3"), "PEERWEAVE_LOCAL_N_PES"),
        (format!("{ours} PEERWEAVE_PE=0 PEERWEAVE_N_PES=4 PEERWEAVE_N_MACHINES=2"), "PEERWEAVE_MACHINE"),
        (format!("{ours} PEERWEAVE_PE=0 PEERWEAVE_N_PES=4 PEERWEAVE_N_MACHINES=2 PEERWEAVE_MACHINE=2"), "PEERWEAVE_MACHINE"),
        (format!("{ours} PEERWEAVE_PE=0 PEERWEAVE_N_PES=4 PEERWEAVE_N_MACHINES=2 PEERWEAVE_MACHINE=1"), "PEERWEAVE_LOCAL_N_PES"),
        (format!("PEERWEAVE_PE=0 PEERWEAVE_N_PES=2 PEERWEAVE_TOKEN={HEX}"), "PEERWEAVE_RENDEZVOUS"),
        ("PEERWEAVE_PE=0 PEERWEAVE_N_PES=2 PEERWEAVE_RENDEZVOUS=unix:@x".to_owned(), "PEERWEAVE_TOKEN"),
        ("PEERWEAVE_PE=0 PEERWEAVE_N_PES=2 PEERWEAVE_RENDEZVOUS=/tmp/x".to_owned(), "PEERWEAVE_RENDEZVOUS"),
        ("PEERWEAVE_PE=0 PEERWEAVE_N_PES=2 PEERWEAVE_RENDEZVOUS=unix:@x PEERWEAVE_TOKEN=beef".to_owned(), "PEERWEAVE_TOKEN"),
        (format!("{torch} RANK=0"), "WORLD_SIZE"),
        (format!("{torch} WORLD_SIZE=2"), "RANK"),
        (format!("{torch} RANK=2 WORLD_SIZE=2"), "RANK"),
        (format!("{torch} RANK=one WORLD_SIZE=2"), "RANK"),
        (format!("{torch} RANK=1 WORLD_SIZE=2"), "LOCAL_WORLD_SIZE"),
        (format!("{torch} RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=3"), "LOCAL_WORLD_SIZE"),
        (format!("{torch} RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 LOCAL_RANK=2"), "LOCAL_RANK"),
        (format!("{torch} RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 LOCAL_RANK=1"), "LOCAL_RANK"),
        (format!("{torch} RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2"), "LOCAL_RANK"),
        (format!("{torch} RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 LOCAL_RANK=1 GROUP_RANK=2"), "GROUP_RANK"),
        ("RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_PORT=29500".to_owned(), "MASTER_ADDR"),
        ("RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=x".to_owned(), "MASTER_PORT"),
        ("RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=x MASTER_PORT=65535".to_owned(), "MASTER_PORT"),
        ("OMPI_COMM_WORLD_RANK=0".to_owned(), "OMPI_COMM_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 PMIX_NAMESPACE=j".to_owned(), "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2".to_owned(), "PMIX_NAMESPACE"),
        ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 PMIX_RANK=1 PMIX_NAMESPACE=j".to_owned(), "PMIX_RANK"),
        (
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 \
             PMIX_NAMESPACE=j"
                .to_owned(),
            "PEERWEAVE_RENDEZVOUS",
        ),
        ("PMIX_RANK=1 PMIX_NAMESPACE=j".to_owned(), "PEERWEAVE_N_PES"),
        ("PMI_RANK=1".to_owned(), "PMI_SIZE"),
        ("PMI_RANK=2 PMI_SIZE=2".to_owned(), "PMI_RANK"),
        ("PMI_RANK=0 PMI_SIZE=2".to_owned(), "MPI_LOCALNRANKS"),
        ("PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=3".to_owned(), "MPI_LOCALNRANKS"),
        ("PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=2".to_owned(), "MPI_LOCALRANKID"),
        ("PMI_RANK=0 PMI_SIZE=4 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=0".to_owned(), "PEERWEAVE_RENDEZVOUS"),
        (format!("{slurm} SLURM_PROCID=1"), "SLURM_NTASKS"),
        (format!("{slurm} SLURM_PROCID=4 SLURM_NTASKS=4 SLURM_NNODES=1"), "SLURM_PROCID"),
        (format!("{slurm} SLURM_PROCID=1 SLURM_NTASKS=4"), "SLURM_NNODES"),
        (format!("{slurm} SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_NNODES=2"), "SLURM_NODEID"),
        (format!("{slurm} SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_NNODES=2 SLURM_NODEID=0 SLURM_LOCALID=1"), "SLURM_TASKS_PER_NODE"),
        (
            format!(
                "{slurm} SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_NNODES=2 SLURM_NODEID=0 SLURM_LOCALID=1 \
                 SLURM_TASKS_PER_NODE=4(x2)"
            ),
            "SLURM_TASKS_PER_NODE",
        ),
        (
            format!(
                "{slurm} SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_NNODES=2 SLURM_NODEID=0 SLURM_LOCALID=2 \
                 SLURM_TASKS_PER_NODE=2(x2)"
            ),
            "SLURM_LOCALID",
        ),
        (
            format!(
                "{slurm} SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_NNODES=2 SLURM_NODEID=0 SLURM_LOCALID=1 \
                 SLURM_TASKS_PER_NODE=2(x2)"
            ),
            "SLURM_JOB_NODELIST",
        ),
        ("SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_NNODES=1".to_owned(), "SLURM_JOB_ID"),
    ];
    for (environment, blamed) in table {
        match job(&environment) {
            Err(BootstrapError::Environment { variable, value, expected }) => {
                assert_eq!(variable, blamed, "{environment}");
                assert!(!expected.is_empty(), "{environment}");
                assert!(!value.unwrap_or_default().contains(HEX), "the error contains the token");
            }
            other => panic!("{environment}: {other:?}"),
        }
    }
}

#[test]
fn lone_launcher_variable_is_reported_and_the_job_has_one_pe() {
    let found = |environment: &str| {
        let vars: HashMap<String, String> = environment
            .split_whitespace()
            .map(|assignment| assignment.split_once('=').unwrap())
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        not_understood(&|name: &str| vars.get(name).cloned()).map(|(name, _)| name)
    };
    for name in ["RANK", "WORLD_SIZE", "PMI_SIZE", "SLURM_PROCID", "MV2_COMM_WORLD_RANK", "FLUX_TASK_RANK", "PALS_RANKID"] {
        let environment = format!("HOME=/srv/me {name}=1");
        assert_eq!(job(&environment).unwrap(), Job::single(), "{environment}");
        assert_eq!(found(&environment), Some(name));
    }
    assert_eq!(found("HOME=/srv/me SLURM_JOB_ID=42 SLURM_NTASKS=8"), None);
    assert_eq!(found("SLURM_JOB_ID=42 SLURM_NTASKS=8 SLURM_PROCID=0"), None, "a batch script is not a PE");
}

#[test]
fn malformed_token_is_not_shown_in_the_error() {
    let secret = "f".repeat(63);
    let environment = format!("PEERWEAVE_PE=0 PEERWEAVE_N_PES=2 PEERWEAVE_RENDEZVOUS=unix:@x PEERWEAVE_TOKEN={secret}");
    let error = job(&environment).unwrap_err().to_string();
    assert!(error.contains("63 characters") && !error.contains(&secret), "{error}");
}

#[test]
fn malformed_token_of_a_single_pe_is_an_error() {
    let error = job("HOME=/srv/me PEERWEAVE_TOKEN=zz").unwrap_err().to_string();
    assert!(error.starts_with("PEERWEAVE_TOKEN") && error.contains("64 hexadecimal digits"), "{error}");
    assert_eq!(job(&format!("PEERWEAVE_TOKEN={HEX}")).unwrap(), Job::single());
}

#[test]
fn launchers_have_the_documented_precedence() {
    let slurm = "SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1";
    let ompi = format!("{slurm} OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1");
    let torch = format!("{ompi} RANK=0 WORLD_SIZE=1");
    let ours = format!("{torch} PEERWEAVE_PE=0 PEERWEAVE_N_PES=1");
    for (environment, launcher) in
        [(slurm, Launcher::Slurm), (&ompi, Launcher::OpenMpi), (&torch, Launcher::Torchrun), (&ours, Launcher::Peerweave)]
    {
        assert_eq!(job(environment).unwrap().launcher, launcher, "{environment}");
    }
}

#[test]
fn shell_inside_a_slurm_allocation_is_a_job_of_one_pe() {
    for environment in [
        "SLURM_JOB_ID=42 SLURM_NTASKS=8 SLURM_NNODES=2 SLURM_JOB_NODELIST=gpu[1-2]",
        "SLURM_JOB_ID=42 SLURM_NTASKS=8 SLURM_NNODES=2 SLURM_PROCID=0 SLURM_LOCALID=0",
        "SLURM_JOB_ID=42 SLURM_NTASKS=8 SLURM_NNODES=2 SLURM_PROCID=0 SLURM_STEP_ID=4294967291",
    ] {
        assert_eq!(job(environment).unwrap(), Job::single(), "{environment}");
    }
}

#[test]
fn slurm_with_the_pmix_plugin_is_detected_as_slurm() {
    let environment = "SLURM_JOB_ID=42 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1 SLURM_NNODES=1 \
                       PMIX_RANK=1 PMIX_NAMESPACE=slurm.pmix.42.0";
    assert_eq!(job(environment).unwrap().launcher, Launcher::Slurm);
}

#[test]
fn derived_rendezvous_and_token_differ_between_jobs() {
    let pe = |rank: u32, port: u32, restart: u32| {
        job(&format!(
            "RANK={rank} WORLD_SIZE=2 LOCAL_RANK={rank} LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT={port} \
             TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT={restart}"
        ))
        .unwrap()
    };
    let one = pe(0, 29500, 0);
    assert_eq!((&one.rendezvous, one.token), (&pe(1, 29500, 0).rendezvous, pe(1, 29500, 0).token));
    for other in [pe(0, 29501, 0), pe(0, 29500, 1)] {
        assert_ne!(one.rendezvous, other.rendezvous);
        assert_ne!(one.token, other.token);
    }
}

#[test]
fn peerweave_variables_override_derived_token_and_rendezvous() {
    let environment = format!(
        "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=x MASTER_PORT=1 PEERWEAVE_TOKEN={HEX} \
         PEERWEAVE_RENDEZVOUS=unix:@mine"
    );
    let job = job(&environment).unwrap();
    assert_eq!(job.token.to_hex(), HEX);
    assert_eq!(job.rendezvous, Some(Endpoint::Unix("mine".into())));
    assert_eq!(job.served, Served::ByPe0);
}

#[test]
fn variables_of_a_job_parse_to_the_original_job() {
    let mut original = Job::on_one_machine(2, 4, Endpoint::Unix("x".into()), Token::random().unwrap());
    original.interface = Some("eth0".into());
    let vars: HashMap<_, _> = original.to_vars().into_iter().collect();
    let read = Job::from_vars(&|name: &str| vars.get(name).cloned()).unwrap();
    assert_eq!(read, Job { launcher: Launcher::Peerweave, ..original });
}

#[test]
fn empty_variable_counts_as_not_set() {
    let vars = |name: &str| matches!(name, names::PE | names::RANK | names::SLURM_PROCID).then(|| " ".to_owned());
    assert_eq!(Job::from_vars(&vars).unwrap(), Job::single());
}

#[test]
fn unset_token_is_derived_unless_the_environment_forbids_this() {
    let torchrun = "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=x MASTER_PORT=1";
    assert!(job(torchrun).unwrap().token_is_public);
    assert!(!job(&format!("{torchrun} PEERWEAVE_TOKEN={HEX}")).unwrap().token_is_public);
    let error = job(&format!("{torchrun} PEERWEAVE_REQUIRE_TOKEN=1")).unwrap_err().to_string();
    assert!(error.starts_with("PEERWEAVE_TOKEN is not set") && error.contains("PEERWEAVE_REQUIRE_TOKEN"), "{error}");
    assert!(job(&format!("{torchrun} PEERWEAVE_REQUIRE_TOKEN=1 PEERWEAVE_TOKEN={HEX}")).is_ok());
    assert!(job(&format!("{torchrun} PEERWEAVE_REQUIRE_TOKEN=0")).is_ok());
    assert!(job(&format!("{torchrun} PEERWEAVE_REQUIRE_TOKEN=yes")).is_err());
    // A single PE needs no rendezvous.
    assert!(job("PEERWEAVE_REQUIRE_TOKEN=1").is_ok());
}
