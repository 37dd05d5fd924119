//! Tests of the routes of collectives on GPUs of the fake driver. The tests cover explanations,
//! choices of the caller, tables in files, and PEs whose routes differ.
#![cfg(target_os = "linux")]

mod common;

use std::path::PathBuf;
use std::time::Duration;

use peerweave_core::{Error, ReduceOp, World};
use peerweave_cuda::{Algorithm, CollectiveKind, Cuda, CudaOptions, Forced, GpuOptions, Method, Provider, Query, RouteTable};
use peerweave_fakes::Fakes;
use peerweave_types::DType;

fn gpu() -> GpuOptions {
    GpuOptions::new(8 << 20).deadline(Duration::from_secs(60)).slots(4)
}

/// Runs `body` on each of `n` PEs, with the options that `options` returns for this PE.
fn pes<T: Send>(
    n: u32,
    options: impl Fn(u32) -> CudaOptions + Sync,
    body: impl Fn(u32, Result<World, Error>) -> T + Sync,
) -> Vec<T> {
    common::pes_that_may_fail(n, gpu(), |gpu| {
        let gpu = gpu.expect("the GPU is set up");
        let pe = gpu.pe().get();
        body(pe, Cuda::with(gpu, &options(pe)).and_then(|cuda| World::new(cuda)))
    })
}

fn cuda(world: &World) -> &Cuda {
    world.backend::<Cuda>().expect("the world runs on GPUs")
}

/// Checks the result of an all_reduce of `len` elements.
fn sums_are_right(world: &World, len: usize) {
    let (send, recv) = (world.alloc::<u32>(len).unwrap(), world.alloc_zeroed::<u32>(len).unwrap());
    let me = world.my_pe().get();
    send.copy_from(&(0..len as u32).map(|i| i + 1000 * me).collect::<Vec<_>>()).unwrap();
    world.team().all_reduce_blocking(&send, &recv, ReduceOp::Sum).unwrap();
    let n = world.n_pes() as u32;
    let expected: Vec<u32> = (0..len as u32).map(|i| n * i + 1000 * (n * (n - 1) / 2)).collect();
    assert_eq!(recv.to_vec().unwrap(), expected);
    world.team().barrier_blocking().unwrap();
    send.release().unwrap();
    recv.release().unwrap();
}

#[test]
fn all_reduce_uses_and_reports_the_algorithm_the_caller_chose() {
    Fakes::new().cuda().run(|| {
        pes(
            3,
            |_| CudaOptions::default(),
            |_, world| {
                let world = world.unwrap();
                let query = Query::new(CollectiveKind::AllReduce, DType::U32, 700);
                let explain = || cuda(&world).explain(world.team(), &query).unwrap();
                let default = explain();
                assert_eq!((default.provider, default.ranks, default.size_bytes), (Provider::Own, 3, 2800));
                assert!(default.why.contains("the built-in table sm_90"), "{default}");
                assert_eq!(default.route.map(|route| route.algorithm), Some(Algorithm::OneShot));
                for (method, algorithm) in [
                    (Method::OneShot, Algorithm::OneShot),
                    (Method::TwoShot, Algorithm::TwoShot),
                    (Method::Chunked, Algorithm::Chunked),
                ] {
                    assert!(cuda(&world).choose(CollectiveKind::AllReduce, Some(method)));
                    let explained = explain();
                    assert_eq!(explained.route.map(|route| route.algorithm), Some(algorithm), "{explained}");
                    assert!(explained.to_string().contains(&format!("because the caller chose {method}")), "{explained}");
                    sums_are_right(&world, 700);
                }
                assert!(!cuda(&world).choose(CollectiveKind::AllReduce, Some(Method::Messages)), "all_reduce has no such method");
                assert!(cuda(&world).choose(CollectiveKind::AllReduce, None));
                assert_eq!(explain(), default);
                let scan = Query::new(CollectiveKind::Scan, DType::U32, 1);
                let error = cuda(&world).explain(world.team(), &scan).unwrap_err();
                assert!(matches!(error, Error::Unsupported { call: "scan", .. }), "{error}");
                assert!(world.finalize().unwrap().is_clean());
            },
        );
    });
}

#[test]
fn collectives_are_correct_if_options_force_messages_or_rings() {
    Fakes::new().cuda().run(|| {
        let forced: Forced = "all_gather=messages,all_to_all=messages,reduce_scatter=chunked".parse().unwrap();
        let options = |_| {
            let mut options = CudaOptions::default();
            options.forced = forced.clone();
            options
        };
        pes(2, options, |me, world| {
            let world = world.unwrap();
            let (x, y) = (world.alloc::<u32>(8).unwrap(), world.alloc_zeroed::<u32>(8).unwrap());
            x.copy_from(&(0..8).map(|i| 10 * me + i).collect::<Vec<_>>()).unwrap();
            let team = world.team();
            team.all_gather_blocking(&x.slice(..4).unwrap(), &y).unwrap();
            assert_eq!(y.to_vec().unwrap(), [0, 1, 2, 3, 10, 11, 12, 13]);
            team.barrier_blocking().unwrap();
            team.all_to_all_blocking(&x, &y).unwrap();
            assert_eq!(y.to_vec().unwrap(), (0..8).map(|i| 4 * me + i % 4 + 10 * (i / 4)).collect::<Vec<_>>());
            team.barrier_blocking().unwrap();
            team.reduce_scatter_blocking(&x, &y.slice(..4).unwrap(), ReduceOp::Sum).unwrap();
            assert_eq!(y.slice(..4).unwrap().to_vec().unwrap(), (0..4).map(|i| 10 + 2 * (4 * me + i)).collect::<Vec<_>>());
            for kind in [CollectiveKind::AllGather, CollectiveKind::AllToAll] {
                let text = cuda(&world).explain(team, &Query::new(kind, DType::U32, 4)).unwrap().to_string();
                assert!(
                    text.contains("Peerweave's kernel that sends messages") && text.contains("the caller chose messages"),
                    "{text}"
                );
            }
            team.barrier_blocking().unwrap();
            x.release().unwrap();
            y.release().unwrap();
            assert!(world.finalize().unwrap().is_clean());
        });
    });
}

#[test]
fn max_blocks_option_limits_the_blocks_of_launches() {
    Fakes::new().cuda().run(|| {
        let options = |_| {
            let mut options = CudaOptions::default();
            options.max_blocks = Some(2);
            options
        };
        pes(2, options, |_, world| {
            let world = world.unwrap();
            let query = Query::new(CollectiveKind::AllReduce, DType::U32, 1 << 20);
            let route =
                cuda(&world).explain(world.team(), &query).unwrap().route.expect("Peerweave's kernels carry out the call");
            assert!(route.blocks <= 2, "{route:?}");
            sums_are_right(&world, 5000);
            assert!(world.finalize().unwrap().is_clean());
        });
    });
}

/// A file in its own directory. Dropping this value removes the directory.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("peerweave-routes-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("my.routes");
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn options(&self) -> CudaOptions {
        let mut options = CudaOptions::default();
        options.route_table = Some(self.0.clone());
        options
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().expect("the file is in a directory"));
    }
}

#[test]
fn route_table_from_a_file_replaces_the_built_in_table() {
    Fakes::new().cuda().run(|| {
        let text = RouteTable::builtin("any").to_string().replace("1-2 8K one_shot 4x128", "1-2 8K two_shot 2x64");
        let file = File::new("used", &text);
        pes(
            2,
            |_| file.options(),
            |_, world| {
                let world = world.unwrap();
                let query = Query::new(CollectiveKind::AllReduce, DType::U32, 700);
                let explained = cuda(&world).explain(world.team(), &query).unwrap();
                assert_eq!(explained.route.map(|route| route.algorithm), Some(Algorithm::TwoShot), "{explained}");
                assert!(explained.table.ends_with("my.routes") && explained.why.contains("two_shot 2x64"), "{explained}");
                sums_are_right(&world, 700);
                assert!(world.finalize().unwrap().is_clean());
            },
        );
    });
}

#[test]
fn setup_error_on_every_pe_names_the_invalid_route_table_file() {
    Fakes::new().cuda().run(|| {
        let text = RouteTable::builtin("any").to_string();
        for (name, text, what) in [
            ("damaged", text.replace("chunked", "chunky"), "is damaged in line"),
            ("version", text.replace("routes 1", "routes 7"), "has version 7, expected 1"),
            ("foreign", text.replace("arch any", "arch sm_10"), "is for GPUs of sm_10, expected sm_"),
        ] {
            let file = File::new(name, &text);
            // PE 1 has a usable table. The error of PE 1 names PE 0, whose table is not usable.
            let options = |pe| if pe == 0 { file.options() } else { CudaOptions::default() };
            let errors = pes(2, options, |_, world| world.map(drop).unwrap_err().to_string());
            assert!(errors[0].contains("my.routes") && errors[0].contains(what), "{}", errors[0]);
            assert!(errors[1].contains("PE 0") && errors[1].contains("my.routes"), "{}", errors[1]);
        }
    });
}

#[test]
fn setup_fails_if_pes_choose_different_methods_or_route_tables() {
    Fakes::new().cuda().run(|| {
        let choose = |pe| {
            let mut options = CudaOptions::default();
            options.forced = if pe == 0 { Forced::default() } else { "all_reduce=chunked".parse().unwrap() };
            options
        };
        for error in pes(2, choose, |_, world| world.map(drop).unwrap_err().to_string()) {
            assert!(error.contains("the choice of methods on this PE") && error.contains("all_reduce=chunked"), "{error}");
        }
        let file = File::new("other", &RouteTable::builtin("any").to_string().replace("8K", "4K"));
        let table = |pe| if pe == 0 { CudaOptions::default() } else { file.options() };
        for error in pes(2, table, |_, world| world.map(drop).unwrap_err().to_string()) {
            assert!(error.contains("a table from a file") && error.contains("the built-in table"), "{error}");
        }
    });
}
