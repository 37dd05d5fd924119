//! Requirements of a scenario on the machine. Nothing is skipped silently: a scenario prints the
//! requirement that the machine does not meet, or fails if [`REQUIRE`] lists the requirement.

/// The variable that lists what the machine must have, such as `gpu:2,multicast`.
pub const REQUIRE: &str = "PEERWEAVE_REQUIRE";

/// Returns whether the machine has `what`, such as `gpu:2` for two GPUs. If not, prints that the
/// scenario did not run; the scenario must then return.
///
/// # Panics
/// If the machine lacks `what` and `PEERWEAVE_REQUIRE` demands it.
pub fn needs(what: &str) -> bool {
    let (name, wanted) = parsed(what);
    let found = amount(name);
    if found >= wanted {
        return true;
    }
    let required = std::env::var(REQUIRE).unwrap_or_default();
    let demanded = required.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(parsed);
    if demanded.into_iter().any(|(demanded, amount)| demanded == name && amount >= wanted) {
        panic!("{REQUIRE}={required} demands {what}, but this machine has {found}");
    }
    println!("    not run: the scenario needs {what}, but this machine has {found}");
    false
}

fn parsed(entry: &str) -> (&str, usize) {
    match entry.split_once(':') {
        Some((name, amount)) => (name, amount.parse().unwrap_or_else(|_| panic!("{entry:?}: expected a number after the colon"))),
        None => (entry, 1),
    }
}

/// Returns how many of something this machine has.
fn amount(name: &str) -> usize {
    match name {
        "processors" => std::thread::available_parallelism().map_or(1, usize::from),
        "gpu" => (0..).take_while(|index| std::path::Path::new(&format!("/dev/nvidia{index}")).exists()).count(),
        // PID namespaces, which only the superuser can create.
        "pid-namespaces" => {
            let made = std::process::Command::new("unshare").args(["--pid", "--fork", "--mount-proc", "true"]).output();
            usize::from(made.is_ok_and(|made| made.status.success()))
        }
        other => panic!("unknown requirement {other:?}, expected processors, gpu or pid-namespaces"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirement_is_parsed_as_a_name_and_a_number() {
        assert_eq!(parsed("gpu:2"), ("gpu", 2));
        assert_eq!(parsed("gpu"), ("gpu", 1));
    }

    #[test]
    fn requirement_is_met_if_the_machine_has_enough_processors() {
        assert!(needs("processors"));
        assert!(!needs("processors:100000"));
    }
}
