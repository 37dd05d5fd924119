//! Formats a result as JSON, with the keys of nccl-tests (version 3 of its JSON format) followed by
//! additional keys.
//!
//! Invariant: every key of nccl-tests is present with the same meaning; other keys are only added.
//! As in nccl-tests, booleans are the strings `"true"` and `"false"`.

use std::ffi::OsString;

use peerweave_types::ReduceOp;
use serde_json::{Value, json};

use super::report::{Cell, Collector, Row};
use crate::machine::Machine;
use peerweave_bench::workload::args::BenchArgs;
use peerweave_bench::workload::config::Config;

/// The version of nccl-tests' file format that the document follows.
const FILE_VERSION: u32 = 3;

/// Prefixes of the variables that are recorded because they can affect a measurement. The token of
/// the job is secret and never recorded.
const RECORDED: [&str; 5] = ["PEERWEAVE_", "NCCL_", "NVSHMEM_", "CUDA_", "OMP_"];

/// Information that a result file contains in addition to the measurements: configuration,
/// arguments, times and machine.
#[derive(Debug)]
pub struct Circumstances<'a> {
    /// Configuration of the measurement.
    pub config: &'a Config,
    /// Arguments of `peerweave bench`.
    pub args: &'a BenchArgs,
    /// Start time as text.
    pub start_time: String,
    /// End time as text.
    pub end_time: String,
    /// Machine that was measured.
    pub machine: &'a Machine,
    /// Time from the start of the command until all PEs have passed a barrier, in milliseconds.
    pub first_barrier_ms: Option<f64>,
}

/// Returns the JSON document of a result.
pub fn document(
    collector: &Collector,
    around: &Circumstances<'_>,
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Value {
    let Circumstances { config, args, start_time, end_time, machine, first_barrier_ms } = around;
    let env: Vec<String> = variables
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| RECORDED.iter().any(|prefix| name.starts_with(prefix)) && !name.contains("TOKEN"))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let command: Vec<String> = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
    let first = collector.ready().first();
    let wrong = collector.wrong();
    let mut configuration = json!({
        "nthreads": if config.threads { config.n_pes } else { 1 },
        "ngpus": 0,
        "minimum_bytes": config.sizes.first(),
        "maximum_bytes": config.sizes.last(),
        "warmup_iters": config.warmup,
        "iterations": config.iters,
        "aggregated_iterations": 1,
        "validation": u8::from(config.check),
        "graph": config.graph.unwrap_or(0),
        "blocking_collectives": truth(!config.stream),
        "per_iter_timing": truth(config.dirty),
        "per_iter_skip": 0,
        "parallel_init": "true",
        "npes": config.n_pes,
        "batches": config.batches,
        "dirty": truth(config.dirty),
        "buffers": config.buffers,
        "window": truth(config.window),
        "devices": collector.ready().iter().map(|ready| json!({
            "rank": ready.pe,
            "group": 0,
            "pid": ready.pid,
            "hostname": machine.hostname,
            "device": ready.pe,
            "device_hex": "0x0",
            "device_info": ready.compute,
        })).collect::<Vec<_>>(),
    });
    match args.step_bytes {
        Some(bytes) => configuration["step_bytes"] = json!(bytes),
        None => configuration["step_factor"] = json!(args.step_factor),
    }
    json!({
        "version": FILE_VERSION,
        "start_time": start_time,
        "args": command,
        "env": env,
        "nccl_version": null,
        "config": configuration,
        "results": collector.rows().iter().map(|row| result(row, config)).collect::<Vec<_>>(),
        "out_of_bounds": { "count": wrong, "okay": truth(wrong == 0) },
        "average_bus_bandwidth": { "bandwidth": collector.average_bus_bw(), "okay": "unchecked" },
        "end_time": end_time,
        "peerweave": {
            "version": env!("CARGO_PKG_VERSION"),
            "operation": config.op.name(),
            "backend": first.map(|ready| &ready.backend),
            "compute": first.map(|ready| &ready.compute),
            "calls": config.calls_name(),
            "private_buffers": first.map(|ready| &ready.private_buffers),
            "start_to_first_barrier_ms": first_barrier_ms,
            "debug_assertions": cfg!(debug_assertions),
            "machine": machine,
        },
    })
}

fn result(row: &Row, config: &Config) -> Value {
    let case = &row.case;
    let batches = |cell: &Cell| {
        let (min, max) = cell.batch_us.iter().fold((f64::INFINITY, 0.0f64), |(min, max), us| (min.min(*us), max.max(*us)));
        json!({ "min_us": min, "max_us": max, "p50_us": cell.time_us, "times_us": cell.batch_us,
            "pe0_times_us": cell.pe0_us, "iterations": cell.iters })
    };
    json!({
        "size": case.size_bytes(),
        "count": case.counts.param,
        "type": case.dtype.name(),
        "redop": case.redop.map_or("none", ReduceOp::name),
        "root": format!("{:>6}", case.root.map_or(-1, |root| root as i64)),
        "out_of_place": placement(&row.out_of_place),
        "in_place": row.in_place.as_ref().map(placement),
        "actual_iterations": row.out_of_place.iters,
        "experiment_name": config.op.name(),
        "out_of_place_per_batch": batches(&row.out_of_place),
        "in_place_per_batch": row.in_place.as_ref().map(batches),
    })
}

fn placement(cell: &Cell) -> Value {
    json!({ "time": cell.time_us, "alg_bw": cell.alg_bw, "bus_bw": cell.bus_bw, "nwrong": cell.wrong })
}

fn truth(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::testing::*;
    use clap::Parser;
    use peerweave_bench::workload::geometry::Placement;
    use peerweave_bench::workload::op::BenchOp;

    #[derive(Parser)]
    struct Wrapper {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn written(op: BenchOp) -> Value {
        let config = config(op, 1, &[1024]);
        let args = Wrapper::parse_from(["bench", op.name(), "-n", "1", "-b", "1K", "-e", "1K"]).bench;
        let mut collector = Collector::new(config.clone());
        collector.take(ready(0));
        collector.take(measured(0, 0, Placement::OutOfPlace, &[1.0, 3.0, 2.0], 0));
        collector.take(measured(0, 0, Placement::InPlace, &[2.0, 2.0, 2.0], 1));
        let machine = Machine::look();
        let around = Circumstances {
            config: &config,
            args: &args,
            start_time: "2026-01-01 00:00:00".into(),
            end_time: "2026-01-01 00:00:01".into(),
            machine: &machine,
            first_barrier_ms: Some(5.0),
        };
        let variables = [("PEERWEAVE_TOKEN", "secret"), ("PEERWEAVE_LOG", "info"), ("HOME", "somewhere"), ("NCCL_DEBUG", "WARN")];
        document(&collector, &around, variables.into_iter().map(|(name, value)| (name.into(), value.into())))
    }

    fn keys(value: &Value) -> Vec<&str> {
        value.as_object().unwrap().keys().map(String::as_str).collect()
    }

    #[test]
    fn json_has_the_same_keys_as_json_of_the_tool_nccl_tests() {
        let document = written(BenchOp::AllReduce);
        let has = |value: &Value, names: &[&str]| {
            for name in names {
                assert!(keys(value).contains(name), "{name} is not among {:?}", keys(value));
            }
        };
        has(&document, &["version", "start_time", "args", "env", "nccl_version", "config", "results", "out_of_bounds"]);
        has(&document, &["average_bus_bandwidth", "end_time"]);
        has(
            &document["config"],
            &["nthreads", "ngpus", "minimum_bytes", "maximum_bytes", "step_factor", "warmup_iters", "iterations"],
        );
        has(&document["config"], &["aggregated_iterations", "validation", "graph", "blocking_collectives", "devices"]);
        has(&document["config"]["devices"][0], &["rank", "group", "pid", "hostname", "device", "device_hex", "device_info"]);
        let result = &document["results"][0];
        has(result, &["size", "count", "type", "redop", "root", "out_of_place", "in_place", "actual_iterations"]);
        has(&result["in_place"], &["time", "alg_bw", "bus_bw", "nwrong"]);
        assert_eq!(result["out_of_place"]["time"], 2.0);
        assert_eq!(result["in_place"]["nwrong"], 1);
        assert_eq!((&result["size"], &result["count"], &result["type"]), (&json!(1024), &json!(256), &json!("float")));
        assert_eq!(document["out_of_bounds"], json!({ "count": 1, "okay": "false" }));
    }

    #[test]
    fn missing_values_are_null_in_the_json() {
        let document = written(BenchOp::SendRecv);
        assert_eq!(document["results"][0]["in_place"], Value::Null);
        assert_eq!(document["results"][0]["redop"], "none");
        assert_eq!(document["results"][0]["root"], "    -1");
    }

    #[test]
    fn secret_and_unrelated_variables_are_not_in_the_json() {
        assert_eq!(written(BenchOp::AllReduce)["env"], json!(["PEERWEAVE_LOG=info", "NCCL_DEBUG=WARN"]));
    }
}
