//! Options of `peerweave bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use peerweave_types::{DType, ReduceOp};
use serde::{Deserialize, Serialize};

use super::binding::Bind;
use super::op::BenchOp;
use crate::console::parse::{parse_duration, parse_pes, parse_picture, parse_size};

/// The arguments of `peerweave bench`.
#[derive(Args, Clone, Debug)]
#[command(after_help = BENCH_HELP)]
pub struct BenchArgs {
    /// Operation to measure
    #[arg(value_enum)]
    pub op: BenchOp,
    /// Number of PEs; default: the number of CPUs that this process may use, but at least the
    /// number of PEs that OP needs
    #[arg(short, long, visible_aliases = ["np", "nproc-per-node"], value_name = "N", value_parser = parse_pes)]
    pub n: Option<usize>,
    /// Smallest size in bytes; the size of a call is the size of its input or of its result on one
    /// PE, whichever is larger
    #[arg(short = 'b', long, value_name = "MIN", value_parser = parse_size, default_value = "8")]
    pub min_bytes: usize,
    /// Largest size in bytes; default: the larger of 64M and MIN
    #[arg(short = 'e', long, value_name = "MAX", value_parser = parse_size)]
    pub max_bytes: Option<usize>,
    /// Factor from one size to the next
    #[arg(short = 'f', long, value_name = "FACTOR", default_value_t = 2, value_parser = parse_factor)]
    pub step_factor: u32,
    /// Difference from one size to the next, in bytes
    #[arg(short = 'i', long, value_name = "BYTES", value_parser = parse_size, conflicts_with = "step_factor")]
    pub step_bytes: Option<usize>,
    /// Element type, named as in nccl-tests, or all
    #[arg(short = 'd', long, value_name = "TYPE", value_parser = parse_dtypes, default_value = "float")]
    pub datatype: DTypes,
    /// Reduction: one of sum, prod, min, max, avg, mulsum, and, or, xor; `all` measures every
    /// reduction that the operation and the backend support
    #[arg(short = 'o', long = "redop", value_name = "REDOP", value_parser = parse_redops, default_value = "sum")]
    pub redop: ReduceOps,
    /// Root of an operation that has one: a rank, or `all` to measure each rank as root; default: 0
    #[arg(short = 'r', long, value_name = "R", value_parser = parse_root)]
    pub root: Option<Root>,
    /// Calls per batch; default: as many as run in --batch-ms milliseconds, at least 3
    #[arg(long, value_name = "I", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub iters: Option<u64>,
    /// Approximate duration of a batch in milliseconds, if --iters is not given
    #[arg(long, value_name = "MS", default_value_t = 10, conflicts_with = "iters", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub batch_ms: u32,
    /// Number of batches; the median of the batches is reported. Default: 25 with --compare;
    /// without --compare, 1 if --iters is given, otherwise 7
    #[arg(long, value_name = "B", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batches: Option<u32>,
    /// Warm-up calls before the measurement
    #[arg(short = 'w', long, value_name = "W", default_value_t = 5)]
    pub warmup: u64,
    /// Rewrite every input before each call, and time each call separately
    #[arg(long)]
    pub dirty: bool,
    /// Whether to check every element of the results: 1 (yes) or 0 (no)
    #[arg(short = 'c', long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub check: u8,
    /// Same as --check 0
    #[arg(long, conflicts_with = "check")]
    pub no_check: bool,
    /// Memory passed to the calls
    #[arg(long, value_enum, default_value_t = Buffers::Symmetric)]
    pub buffers: Buffers,
    /// Backend to measure
    #[arg(long, value_enum, default_value_t = BackendName::Host)]
    pub backend: BackendName,
    /// Run the PEs as threads of one process
    #[arg(long)]
    pub threads: bool,
    /// Capture this many calls (default: 20) into a CUDA graph and time its replays; not with
    /// --backend host; with --backend cuda only together with --compare
    #[arg(short = 'G', long, visible_alias = "graphs", value_name = "CALLS", num_args = 0..=1, require_equals = false,
        default_missing_value = "20", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub graph: Option<u32>,
    /// Compare Peerweave's kernels (own) with each of these contenders: nccl, nccl-window, nvshmem,
    /// torch, or own:METHOD, which is Peerweave's kernels with a method of PEERWEAVE_ROUTE. The
    /// batches of the contenders alternate, except that torch is measured last. Only with --backend
    /// cuda
    #[arg(long, value_name = "CONTENDERS", value_delimiter = ',', value_parser = parse_contender, conflicts_with_all = ["window", "nbi", "each", "dirty", "threads"])]
    pub compare: Vec<Contender>,
    /// Bus bandwidth of the hardware in GB/s, which the plot of a comparison shows as a line
    #[arg(long, value_name = "GB/S", value_parser = parse_limit)]
    pub limit: Option<f64>,
    /// Register the buffers as symmetric windows, which NCCL's kernels access directly; only with
    /// --backend nccl
    #[arg(long)]
    pub window: bool,
    /// Use nonblocking (nbi) puts and gets; a quiet at the end of each batch completes them. For p
    /// and put-strided: one quiet at the end of each batch instead of one after each call
    #[arg(long)]
    pub nbi: bool,
    /// Measure each call or graph separately, and wait for its end before the next call or graph;
    /// only with --backend nvshmem
    #[arg(long)]
    pub each: bool,
    /// Print how each call is carried out and why: the algorithm, the launch shape, and the row or
    /// threshold of the route table; only with --backend cuda
    #[arg(long)]
    pub explain: bool,
    /// Clock of the measurement; default: events with --backend nvshmem, otherwise wall
    #[arg(long, value_enum)]
    pub clock: Option<Clock>,
    /// Measure stream-ordered calls: enqueue all calls of a batch, then wait for them
    #[arg(long, conflicts_with = "dirty")]
    pub stream: bool,
    /// Whether to bind each PE to its own processor, if there are enough processors
    #[arg(long, value_enum, default_value_t = Bind::Processor)]
    pub bind: Bind,
    /// Write the result as JSON, with the keys of nccl-tests
    #[arg(short = 'J', long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Plot bandwidth and time against size
    #[arg(long, value_name = "FILE.svg", value_parser = parse_picture)]
    pub plot: Option<PathBuf>,
    /// Stop after this time, with exit code 124
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
}

const BENCH_HELP: &str = "\
`peerweave bench p2p` measures bandwidth and latency between GPUs; see `peerweave bench p2p --help` for its options.

Each batch has one time: the time per call on the slowest PE. The column `time` shows the median over the batches. \
busbw is algbw times a factor that nccl-tests defines for each operation. N/A in the in-place columns means that no \
in-place form was measured. Inputs are chosen so that every result is exact. The exit code is 1 if any element is wrong.

In put, get, put-signal, put-strided, p, g and atomics, PE 0 accesses the memory of PE 1. Each call completes at its \
target before the next call; with --nbi, the calls of a batch complete together at the end of the batch. For \
ping-pong, the time is half a round trip.

With --backend nvshmem, PE i is a process on GPU i. A CUDA event before a batch and a CUDA event after it give the \
time of the batch. Before the first event, the command enqueues W warm-up calls of a one-sided operation, or one \
barrier for other operations. Unless --nbi is given, this work keeps the GPU busy while the host enqueues the first \
timed calls.
- put, get, put-signal, p: only PE 0 makes calls, in stream order, as in the test `latency` of NVSHMEM's perftest. \
With --nbi, a quiet completes the calls. The host waits for the quiet before it records the event after the batch, \
as in perftest's test `bw`.
- g: the host waits for each call.
- barrier, sync: measured as in perftest's tests `barrier_on_stream` and `sync_on_stream`.
- all-reduce, all-gather (fcollect), all-to-all, broadcast, reduce-scatter: with --each, the host waits for each \
call, as in the perftest test of the same operation. With -G, the calls are in CUDA graphs, as in this perftest test \
with its option --cudagraph.

perftest reports the time of PE 0, but this command reports the time of the slowest PE. The JSON contains the times \
of PE 0 as pe0_times_us. Every PE that has results checks them before and after the measurement.";

/// Kind of memory in which the buffers of the measured calls are allocated.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Buffers {
    /// Symmetric memory; with NCCL, memory of NCCL's allocator
    Symmetric,
    /// Ordinary memory of the process; with NCCL and NVSHMEM, device memory that the CUDA driver
    /// allocates
    Private,
}

/// Backend to measure.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum BackendName {
    /// The shared memory of one machine
    Host,
    /// The portable API on GPUs, with one GPU for each PE
    Cuda,
    /// NCCL, with one GPU for each PE; all calls are stream-ordered
    Nccl,
    /// NVSHMEM, with one GPU for each PE; all calls except g are stream-ordered
    Nvshmem,
}

/// A contender of a comparison: a library, or Peerweave's kernels with one method.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// Peerweave's portable API on GPUs. The field is the name of the method (algorithm) to use. If
    /// it is `None`, `PEERWEAVE_ROUTE` or the route table selects the method.
    Own(Option<String>),
    /// NCCL, with buffers of its allocator.
    Nccl,
    /// NCCL, with buffers that are symmetric windows.
    NcclWindow,
    /// The host API of NVSHMEM.
    Nvshmem,
    /// Symmetric memory of PyTorch, in separate processes.
    Torch,
}

impl Contender {
    /// Returns the contender's name, which options and results use.
    pub fn name(&self) -> String {
        match self {
            Self::Own(None) => "own".to_owned(),
            Self::Own(Some(method)) => format!("own:{method}"),
            Self::Nccl => "nccl".to_owned(),
            Self::NcclWindow => "nccl-window".to_owned(),
            Self::Nvshmem => "nvshmem".to_owned(),
            Self::Torch => "torch".to_owned(),
        }
    }
}

/// Clock that measures the duration of the calls.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Clock {
    /// Two CUDA events around the calls, on their stream
    Events,
    /// The host's clock, from before the first call until the last call has completed
    Wall,
}

/// The element types of `--datatype`, in the order in which they are measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DTypes(pub Vec<DType>);

/// The reductions of `--redop`, in the order in which they are measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReduceOps(pub Vec<ReduceOp>);

/// The roots to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// Only this rank is the root.
    One(usize),
    /// The ranks take turns: every rank is the root once.
    All,
}

fn parse_dtypes(text: &str) -> Result<DTypes, String> {
    let alias = |dtype: DType| match dtype {
        DType::I8 => "i8",
        DType::U8 => "u8",
        DType::I16 => "i16",
        DType::U16 => "u16",
        DType::I32 => "i32",
        DType::U32 => "u32",
        DType::I64 => "i64",
        DType::U64 => "u64",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::F32 => "f32",
        DType::F64 => "f64",
        _ => "",
    };
    if text == "all" {
        return Ok(DTypes(DType::ALL.to_vec()));
    }
    match DType::ALL.into_iter().find(|dtype| dtype.name() == text || alias(*dtype) == text && !text.is_empty()) {
        Some(dtype) => Ok(DTypes(vec![dtype])),
        None => Err(format!(
            "{text:?} is not an element type, expected the word all, or one of these types: {}",
            DType::ALL.map(DType::name).join(", ")
        )),
    }
}

fn parse_redops(text: &str) -> Result<ReduceOps, String> {
    if text == "all" {
        return Ok(ReduceOps(ReduceOp::ALL.to_vec()));
    }
    match ReduceOp::ALL.into_iter().find(|op| op.name() == text) {
        Some(op) => Ok(ReduceOps(vec![op])),
        None => Err(format!(
            "{text:?} is not a reduction, expected the word all, or one of these reductions: {}",
            ReduceOp::ALL.map(ReduceOp::name).join(", ")
        )),
    }
}

fn parse_factor(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|factor| *factor >= 2).ok_or_else(|| "expected an integer that is at least 2".to_owned())
}

fn parse_contender(text: &str) -> Result<Contender, String> {
    let known = "expected nccl, nccl-window, nvshmem, torch, own, or own:METHOD";
    Ok(match text.split_once(':') {
        Some(("own", method)) if !method.is_empty() => Contender::Own(Some(method.to_owned())),
        None if text == "own" => Contender::Own(None),
        None if text == "nccl" => Contender::Nccl,
        None if text == "nccl-window" => Contender::NcclWindow,
        None if text == "nvshmem" => Contender::Nvshmem,
        None if text == "torch" => Contender::Torch,
        _ => return Err(format!("--compare cannot measure {text:?}, {known}")),
    })
}

fn parse_limit(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|limit: &f64| limit.is_finite() && *limit > 0.0)
        .ok_or_else(|| "expected a number above 0".to_owned())
}

fn parse_root(text: &str) -> Result<Root, String> {
    match (text, text.parse()) {
        ("all", _) => Ok(Root::All),
        (_, Ok(root)) => Ok(Root::One(root)),
        _ => Err(format!("{text:?} is not a root, expected all or a rank")),
    }
}
