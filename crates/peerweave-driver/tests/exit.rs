//! Tests of the exit of a process while background threads call the driver.
#![cfg(target_os = "linux")]

mod common;

use std::sync::mpsc::channel;
use std::time::Duration;

use peerweave_driver::retire;
use peerweave_fakes::{Fakes, child};

use common::{LONG, device};

#[test]
fn process_exit_waits_for_memory_that_is_being_freed() {
    if child().is_some() {
        let (context, stream) = device();
        let (sender, receiver) = channel();
        let free = move || {
            sender.send(()).expect("the main thread waits");
            // Less than the time for which the exit waits.
            std::thread::sleep(Duration::from_secs(1));
            eprintln!("the free has returned");
        };
        retire(&context, [stream], Box::new(free));
        receiver.recv_timeout(LONG).expect("the function that frees begins");
        retire(&context, [], Box::new(|| eprintln!("a later free has run")));
        std::process::exit(0);
    }
    let output = Fakes::new().cuda().run_child("process_exit_waits_for_memory_that_is_being_freed");
    assert!(output.status.success() && output.stderr.contains("the free has returned"), "{output}");
    assert!(!output.stderr.contains("a later free has run"), "a function ran after the gate was closed: {output}");
}
