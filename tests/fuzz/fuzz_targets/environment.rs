//! Parses launcher environments with arbitrary text: the result is a consistent job, or an error
//! that names a variable.

#![no_main]

use libfuzzer_sys::fuzz_target;
use peerweave_bootstrap::{BootstrapError, Endpoint, Job, Token};

fuzz_target!(|text: &str| {
    if let Ok(endpoint) = text.parse::<Endpoint>() {
        assert_eq!(endpoint.to_string().parse::<Endpoint>().unwrap(), endpoint);
    }
    let _ = text.parse::<Token>();

    let vars: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let find = |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    match Job::from_vars(&find) {
        Ok(job) => {
            assert!(job.pe.get() < job.n_pes);
            assert!(job.local_pe < job.local_n_pes && job.local_n_pes <= job.n_pes);
            assert!(job.machine < job.n_machines && job.n_machines <= job.n_pes);
            assert_eq!(job.n_pes > 1 && job.rendezvous.is_none(), false);
        }
        Err(BootstrapError::Environment { expected, .. }) => assert!(!expected.is_empty()),
        Err(other) => panic!("{other}"),
    }
});
