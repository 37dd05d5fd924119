//! The plan of measurements that follows from the options of `peerweave bench`.
//!
//! Invariant: the plan is a pure function of the [`Config`], so that the command and every PE have
//! the same plan.

use peerweave_types::{DType, ReduceOp};
use serde::{Deserialize, Serialize};

use super::args::{BackendName, BenchArgs, Buffers, Clock, Contender, Root};
use super::backends::{check_backend, clock, has_reduction, has_type, is_compared};
use super::binding::Bind;
use super::geometry::Placement;
use super::op::{BenchOp, Counts};
use crate::console::parse::{default_pes, format_size};

/// Configuration of a measurement, shared by the command and every PE.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Config {
    /// Operation to measure.
    pub op: BenchOp,
    /// Number of PEs.
    pub n_pes: usize,
    /// Sizes in bytes, ascending.
    pub sizes: Vec<usize>,
    /// Element types, as the numeric codes of [`DType`].
    pub dtypes: Vec<u8>,
    /// Reductions, as the numeric codes of [`ReduceOp`]; empty for operations that do not reduce.
    pub redops: Vec<u8>,
    /// Ranks to measure as the root; empty for operations without a root.
    pub roots: Vec<usize>,
    /// Number of calls in a batch; `None` if `bench` chooses the number.
    pub iters: Option<u64>,
    /// Approximate duration of a batch in milliseconds; used if `iters` is `None`.
    pub batch_ms: u32,
    /// Number of batches that are timed.
    pub batches: u32,
    /// Number of warm-up calls before the measurement.
    pub warmup: u64,
    /// Whether inputs are rewritten before each call.
    pub dirty: bool,
    /// Whether results are checked.
    pub check: bool,
    /// Kind of memory in which the buffers of the measured calls are allocated.
    pub buffers: Buffers,
    /// Whether PEs are threads.
    pub threads: bool,
    /// Whether stream-ordered calls are timed.
    pub stream: bool,
    /// Binding of PEs to processors.
    pub bind: Bind,
    /// Backend to measure.
    pub backend: BackendName,
    /// Number of calls in a graph; `None` if calls are timed without graphs.
    pub graph: Option<u32>,
    /// Whether the buffers are registered as NCCL's symmetric windows.
    pub window: bool,
    /// Whether puts and gets are nonblocking (nbi) and completed by a quiet.
    pub nbi: bool,
    /// Whether each call, or each launch of a graph, is timed separately instead of a whole batch.
    pub each: bool,
    /// Whether PE 0 sends a note for each case. The note says which algorithm the calls use, and
    /// why.
    pub explain: bool,
    /// The contenders of a comparison, Peerweave's kernels first; empty if nothing is compared.
    pub compare: Vec<Contender>,
    /// Clock for the measurement.
    pub clock: Clock,
}

/// One line of the table: an element type, a reduction, a root and a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Element type.
    pub dtype: DType,
    /// Reduction, if the operation reduces.
    pub redop: Option<ReduceOp>,
    /// Root, if the operation has one.
    pub root: Option<usize>,
    /// Element counts of the call.
    pub counts: Counts,
    /// Size of the case in elements. [`Case::size_bytes`] is the same size in bytes.
    pub size_count: usize,
}

impl Case {
    /// Returns the size of the case in bytes, which the table prints. Usually this is the size of a
    /// PE's input or result, whichever is larger. For operations with strides, counts only the
    /// elements that the call moves.
    pub fn size_bytes(&self) -> usize {
        self.size_count * self.dtype.size_bytes()
    }
}

impl Config {
    /// Returns the configuration of one call on the host backend, with `n_pes` processes. There are
    /// no sizes and no element types, and results are not checked.
    pub fn of_one_call(op: BenchOp, n_pes: usize) -> Self {
        Self {
            op,
            n_pes,
            sizes: Vec::new(),
            dtypes: Vec::new(),
            redops: Vec::new(),
            roots: Vec::new(),
            iters: Some(1),
            batch_ms: 10,
            batches: 1,
            warmup: 0,
            dirty: false,
            check: false,
            buffers: Buffers::Symmetric,
            threads: false,
            stream: false,
            bind: Bind::None,
            backend: BackendName::Host,
            graph: None,
            window: false,
            nbi: false,
            each: false,
            explain: false,
            compare: Vec::new(),
            clock: Clock::Wall,
        }
    }

    /// Creates the configuration from the arguments of the command.
    ///
    /// # Errors
    /// The message names arguments that are valid alone but cannot be combined.
    pub fn from_args(args: &BenchArgs) -> Result<Self, String> {
        let op = args.op;
        let n_pes = args.n.unwrap_or_else(|| default_pes().max(op.least_pes()));
        if n_pes < op.least_pes() {
            return Err(format!("-n is {n_pes}, expected at least {1} PEs for {0}", op.name(), op.least_pes()));
        }
        let mut dtypes = if op.has_type() { args.datatype.0.clone() } else { vec![DType::I64] };
        if dtypes.len() > 1 {
            // `all` means all types of the operation, of the backend, and of a comparison.
            let is_compared = |dtype| args.compare.is_empty() || is_compared(op, dtype);
            dtypes.retain(|dtype| op.takes(*dtype) && has_type(args.backend, *dtype) && is_compared(*dtype));
        }
        if let Some(dtype) = dtypes.iter().find(|dtype| !op.takes(**dtype)) {
            return Err(format!("-d {dtype} is not supported by {}, expected float, half or bfloat16", op.name()));
        }
        if let Some(dtype) = dtypes.iter().find(|dtype| !has_type(args.backend, **dtype)) {
            return Err(format!("-d {dtype} is not supported by {} with this backend, expected host or cuda", op.name()));
        }
        let mut redops = if op.reduces() { args.redop.0.clone() } else { Vec::new() };
        if redops.len() > 1 {
            // `all` means all reductions of the backend.
            redops.retain(|redop| has_reduction(args.backend, *redop) && op.accepts(*redop));
        }
        if let Some(redop) = redops.iter().find(|redop| !op.accepts(**redop)) {
            return Err(format!("reduction {redop} is not defined for {}, expected any other reduction", op.name()));
        }
        if op.reduces() && !dtypes.iter().any(|dtype| redops.iter().any(|redop| redop.accepts(*dtype))) {
            let (dtype, redop) = (dtypes[0], redops[0]);
            return Err(format!("reduction {redop} is not defined for the element type {dtype}"));
        }
        let roots = match args.root.unwrap_or(Root::One(0)) {
            _ if !op.has_root() && args.root.is_some() => {
                return Err(format!("--root is not supported by {}, which has no root", op.name()));
            }
            _ if !op.has_root() => Vec::new(),
            Root::All => (0..n_pes).collect(),
            Root::One(root) if root < n_pes => vec![root],
            Root::One(root) => return Err(format!("--root is {root}, expected less than {n_pes} (the number of PEs)")),
        };
        if args.dirty && !op.has_input() {
            return Err(format!("--dirty is not supported by {}, which has no input", op.name()));
        }
        if args.plot.is_some() && !op.has_size() {
            return Err(format!("--plot needs at least two sizes, but {} has only one", op.name()));
        }
        if args.stream && !op.has_stream_form() {
            return Err(format!("--stream is not supported by {}, which waits in each call", op.name()));
        }
        if args.limit.is_some() && args.compare.is_empty() {
            return Err(
                "--limit is supported only with --compare, because --limit adds a line to the plot of a comparison".to_owned()
            );
        }
        check_backend(args, &redops)?;
        let clock = clock(args)?;
        let sizes = sizes(args)?;
        if args.plot.is_some() && sizes.len() < 2 {
            return Err("--plot needs at least two sizes, but -b, -e and the step give only one".to_owned());
        }
        Ok(Self {
            op,
            n_pes,
            sizes,
            dtypes: dtypes.iter().map(|dtype| *dtype as u8).collect(),
            redops: redops.iter().map(|redop| *redop as u8).collect(),
            roots,
            iters: args.iters,
            batch_ms: args.batch_ms,
            batches: args.batches.unwrap_or(match (args.iters, args.compare.is_empty()) {
                (Some(_), true) => 1,
                (None, true) => 7,
                // Enough batches for a percentile.
                (_, false) => 25,
            }),
            warmup: args.warmup,
            dirty: args.dirty,
            check: args.check == 1 && !args.no_check,
            buffers: args.buffers,
            threads: args.threads,
            stream: args.stream,
            bind: args.bind,
            backend: args.backend,
            graph: args.graph,
            window: args.window,
            nbi: args.nbi,
            each: args.each,
            explain: args.explain,
            compare: contenders(args),
            clock,
        })
    }

    /// Returns whether the in-place form is measured too.
    pub fn has_in_place(&self) -> bool {
        if !self.compare.is_empty() {
            // Not every contender has in-place forms.
            return false;
        }
        match self.backend {
            BackendName::Host | BackendName::Cuda => self.op.has_in_place(),
            // NCCL has no in-place exchanges.
            BackendName::Nccl => self.op.has_in_place() && !matches!(self.op, BenchOp::AllToAll | BenchOp::AllToAllV),
            // NVSHMEM's other collectives need separate buffers.
            BackendName::Nvshmem => self.op == BenchOp::AllReduce,
        }
    }

    /// Returns the placements to measure: always out of place, then in place if
    /// [`Self::has_in_place`] returns `true`.
    pub fn placements(&self) -> impl Iterator<Item = Placement> + use<> {
        let in_place = self.has_in_place().then_some(Placement::InPlace);
        std::iter::once(Placement::OutOfPlace).chain(in_place)
    }

    /// Returns the name of the kind of memory that the measured calls use.
    pub fn buffers_name(&self) -> &'static str {
        match (self.backend, self.buffers) {
            (BackendName::Nccl, Buffers::Symmetric) if self.window => "memory of NCCL's allocator, registered as windows",
            (BackendName::Nccl, Buffers::Symmetric) => "NCCL's allocator",
            (BackendName::Nccl, Buffers::Private) => "device memory",
            (BackendName::Nvshmem, Buffers::Private) => "device memory",
            (BackendName::Host | BackendName::Cuda | BackendName::Nvshmem, Buffers::Symmetric) => "symmetric",
            (BackendName::Host | BackendName::Cuda, Buffers::Private) => "private",
        }
    }

    /// Returns a text for headers and plots that says how calls are made and timed, such as
    /// `stream-ordered, timed by events`.
    pub fn calls_name(&self) -> String {
        let is_compared = !self.compare.is_empty();
        let mut name =
            match (self.graph, self.stream || is_compared || matches!(self.backend, BackendName::Nccl | BackendName::Nvshmem)) {
                (Some(calls), _) => format!("CUDA graphs of {calls} calls"),
                (None, true) if self.op == BenchOp::G => "blocking".to_owned(),
                (None, true) if self.nbi => "stream-ordered, nbi".to_owned(),
                (None, true) => "stream-ordered".to_owned(),
                (None, false) if self.nbi => "blocking, nbi".to_owned(),
                (None, false) => "blocking".to_owned(),
            };
        if self.each {
            name.push_str(", timed separately");
        }
        if self.clock == Clock::Events {
            name.push_str(", timed by events");
        }
        name
    }

    /// Returns the cases to measure. Each case becomes one line in the table of results. The cases
    /// are ordered by element type, reduction, root and size, as in nccl-tests. Reductions that are
    /// not defined for an element type are omitted.
    pub fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for dtype in self.dtypes.iter().filter_map(|number| DType::from_u8(*number)) {
            for redop in one_or_none(self.redops.iter().filter_map(|number| ReduceOp::from_u8(*number))) {
                if redop.is_some_and(|redop| !redop.accepts(dtype)) {
                    continue;
                }
                for root in one_or_none(self.roots.iter().copied()) {
                    for &bytes in &self.sizes {
                        let counts = self.op.counts(bytes, dtype.size_bytes(), self.n_pes);
                        cases.push(Case { dtype, redop, root, counts, size_count: self.op.size_count(counts) });
                    }
                }
            }
        }
        cases
    }
}

/// Returns the contenders that the option `--compare` names, each of them once. Peerweave's kernels
/// come first, even if the option does not name them. Returns no contenders without the option.
fn contenders(args: &BenchArgs) -> Vec<Contender> {
    let mut all = Vec::new();
    let own = (!args.compare.is_empty()).then_some(Contender::Own(None));
    for contender in own.into_iter().chain(args.compare.iter().cloned()) {
        if !all.contains(&contender) {
            all.push(contender);
        }
    }
    all
}

/// Returns each item as `Some`, or a single `None` if there are no items.
fn one_or_none<T>(items: impl Iterator<Item = T>) -> Vec<Option<T>> {
    let items: Vec<_> = items.map(Some).collect();
    if items.is_empty() { vec![None] } else { items }
}

fn sizes(args: &BenchArgs) -> Result<Vec<usize>, String> {
    if !args.op.has_size() {
        return Ok(vec![0]);
    }
    let min = args.min_bytes;
    if min == 0 {
        return Err("-b is 0, expected at least 1 byte".to_owned());
    }
    let max = args.max_bytes.unwrap_or_else(|| min.max(64 << 20));
    if min > max {
        return Err(format!("-b is {}, expected at most {} (-e)", format_size(min), format_size(max)));
    }
    let mut sizes = Vec::new();
    let mut size = min;
    while size <= max {
        sizes.push(size);
        let next = match args.step_bytes {
            Some(0) => return Err("-i is 0, expected at least 1 byte".to_owned()),
            Some(step) => size.checked_add(step),
            None => size.checked_mul(args.step_factor as usize),
        };
        let Some(next) = next else { break };
        size = next;
        if sizes.len() > 100_000 {
            return Err("-b, -e and the step give more than 100000 sizes, expected a larger step (-f or -i)".to_owned());
        }
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Wrapper {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn config(arguments: &[&str]) -> Result<Config, String> {
        let wrapper = Wrapper::try_parse_from([&["bench"], arguments].concat()).map_err(|error| error.to_string())?;
        Config::from_args(&wrapper.bench)
    }

    #[test]
    fn sizes_are_multiplied_by_option_f_or_increased_by_option_i() {
        assert_eq!(config(&["all-reduce", "-n", "2", "-b", "8", "-e", "1K", "-f", "4"]).unwrap().sizes, [8, 32, 128, 512]);
        assert_eq!(config(&["all-reduce", "-b", "1K", "-e", "3K", "-i", "1K"]).unwrap().sizes, [1024, 2048, 3072]);
        assert_eq!(config(&["all-reduce", "-b", "1G"]).unwrap().sizes, [1 << 30]);
        assert_eq!(config(&["barrier"]).unwrap().sizes, [0]);
    }

    #[test]
    fn types_and_reductions_are_named_as_in_the_tool_nccl_tests() {
        let names = |arguments: &[&str]| {
            let cases = config(arguments).unwrap().cases();
            cases.iter().map(|case| format!("{}/{}", case.dtype, case.redop.map_or("none", ReduceOp::name))).collect::<Vec<_>>()
        };
        assert_eq!(names(&["all-reduce", "-e", "8", "-d", "bfloat16", "-o", "mulsum"]), ["bfloat16/mulsum"]);
        assert_eq!(names(&["broadcast", "-e", "8", "-d", "f16"]), ["half/none"]);
        assert_eq!(names(&["all-reduce", "-e", "8", "-d", "all", "-o", "all"]).len(), 4 * 6 + 8 * 9);
        assert_eq!(names(&["all-gather", "-e", "8", "-d", "all"]).len(), 14);
    }

    #[test]
    fn root_option_accepts_a_rank_or_all() {
        assert_eq!(config(&["reduce", "-n", "3", "-r", "all"]).unwrap().roots, [0, 1, 2]);
        assert_eq!(config(&["reduce", "-n", "3", "--root", "2"]).unwrap().roots, [2]);
        assert_eq!(
            config(&["all-reduce", "-n", "3", "-r", "all"]).unwrap_err(),
            "--root is not supported by all-reduce, which has no root"
        );
        assert_eq!(
            config(&["reduce", "-n", "3", "-r", "3"]).unwrap_err(),
            "--root is 3, expected less than 3 (the number of PEs)"
        );
    }

    #[test]
    fn number_of_batches_defaults_to_1_if_iters_is_given() {
        let fixed = config(&["put", "-n", "2", "--iters", "20"]).unwrap();
        assert_eq!((fixed.iters, fixed.batches, fixed.warmup), (Some(20), 1, 5));
        assert_eq!(config(&["put", "-n", "2", "--iters", "20", "--batches", "3"]).unwrap().batches, 3);
        assert_eq!(config(&["put", "-n", "2"]).unwrap().batches, 7);
    }

    #[test]
    fn nvshmem_is_timed_by_events_by_default() {
        assert_eq!(config(&["put", "--backend", "nvshmem"]).unwrap().clock, Clock::Events);
        assert_eq!(config(&["put", "--backend", "nvshmem", "--clock", "wall"]).unwrap().clock, Clock::Wall);
        assert_eq!(config(&["put"]).unwrap().clock, Clock::Wall);
    }

    #[test]
    fn option_redop_all_selects_every_reduction_of_the_backend() {
        let count = |backend| config(&["all-reduce", "--backend", backend, "-d", "i32", "-o", "all"]).unwrap().redops.len();
        assert_eq!([count("host"), count("nccl"), count("nvshmem")], [9, 6, 7]);
    }

    #[test]
    fn results_are_checked_by_default() {
        assert!(config(&["put"]).unwrap().check);
        assert!(config(&["put", "-c", "1"]).unwrap().check);
        assert!(!config(&["put", "-c", "0"]).unwrap().check);
        assert!(!config(&["put", "--no-check"]).unwrap().check);
    }

    #[test]
    fn invalid_arguments_are_refused_with_the_reason() {
        for (arguments, expected) in [
            (&["put", "-n", "1"][..], "-n is 1, expected at least 2 PEs for put"),
            (&["all-reduce", "-d", "f8e4m3"], "reduction sum is not defined for the element type f8e4m3"),
            (&["all-reduce", "-o", "and"], "reduction and is not defined for the element type float"),
            (&["barrier", "--dirty"], "--dirty is not supported by barrier, which has no input"),
            (&["all-reduce", "-b", "0"], "-b is 0, expected at least 1 byte"),
            (&["all-reduce", "-b", "2K", "-e", "1K"], "-b is 2K, expected at most 1K (-e)"),
            (&["all-reduce", "-d", "float128"], "\"float128\" is not an element type"),
            (&["all-reduce", "-o", "median"], "\"median\" is not a reduction"),
            (&["all-reduce", "-f", "1"], "at least 2"),
            (&["all-reduce", "--plot", "x.png"], "ends with .svg"),
            (&["barrier", "--plot", "x.svg"], "--plot needs at least two sizes, but barrier has only one"),
            (&["put", "-b", "8", "-e", "8", "--plot", "x.svg"], "--plot needs at least two sizes, but -b"),
            (&["put", "--backend", "nccl"], "--backend nccl: NCCL has no operation put"),
            (&["all-reduce", "--backend", "nccl", "-d", "i32", "-o", "xor"], "--backend nccl: NCCL has no reduction xor"),
            (&["all-reduce", "--backend", "nccl", "--dirty"], "--backend nccl: --dirty"),
            (
                &["all-reduce", "--backend", "nccl", "--window", "--buffers", "private"],
                "--backend nccl: --window requires --buffers symmetric",
            ),
            (&["all-reduce", "--window"], "--window is supported only with --backend nccl"),
            (&["all-reduce", "--backend", "nvshmem", "--window"], "--window is supported only with --backend nccl"),
            (&["all-reduce", "-G", "20"], "--graph is not supported with --backend host"),
            (&["gather", "--backend", "nvshmem"], "--backend nvshmem: NVSHMEM has no operation gather"),
            (&["atomics", "--backend", "nvshmem"], "--backend nvshmem: NVSHMEM has no atomics on streams"),
            (&["all-reduce", "--backend", "nvshmem", "-o", "avg"], "--backend nvshmem: NVSHMEM has no reduction avg"),
            (&["all-reduce", "--backend", "nvshmem", "--nbi"], "--backend nvshmem: --nbi is not supported by all-reduce"),
            (&["put", "--backend", "nvshmem", "--nbi", "-G", "2"], "--backend nvshmem: --graph is not supported with --nbi"),
            (&["put", "--backend", "nvshmem", "--nbi", "--buffers", "private"], "--nbi requires --buffers symmetric"),
            (&["broadcast", "--backend", "nvshmem", "--buffers", "private"], "--buffers private is not supported by broadcast"),
            (&["ping-pong", "--backend", "nvshmem", "-G", "2"], "--graph is not supported by ping-pong"),
            (&["put", "--backend", "nvshmem", "--threads"], "--backend nvshmem: --threads"),
            (&["all-reduce", "--nbi"], "--nbi is not supported by all-reduce"),
            (&["all-reduce", "--backend", "nccl", "--nbi"], "--nbi is not supported by all-reduce"),
            (&["all-gather-v", "--backend", "nccl"], "--backend nccl: NCCL has no operation all-gather-v"),
            (&["put-strided", "--backend", "nvshmem"], "--backend nvshmem: NVSHMEM has no operation put-strided"),
            (&["all-reduce", "--backend", "nccl", "--each"], "--each is supported only with --backend nvshmem"),
            (&["put", "--clock", "events"], "--clock events is supported only with --backend nvshmem"),
            (&["frobnicate"], "invalid value 'frobnicate'"),
        ] {
            let error = config(arguments).unwrap_err();
            assert!(error.contains(expected), "{arguments:?}: {error}");
        }
    }

    #[test]
    fn configuration_is_unchanged_by_a_json_round_trip() {
        let config = config(&["reduce", "-n", "4", "-d", "all", "-o", "all", "-r", "all", "--dirty"]).unwrap();
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<Config>(&text).unwrap(), config);
    }
}
