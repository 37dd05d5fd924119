"""Starts each program and reads its output. report.py computes the statistics over rounds.

Every call of `measure` starts new processes and leaves no process behind, even if it fails.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from .cases import Group

SYMMETRIC_SIZE = "512M"
BATCH_MS = 30
"""Duration of a batch in milliseconds; equal to the default of `peerweave bench`."""


class ProgramError(Exception):
    """The error if a program failed, ran out of time, or printed unexpected output. Its text is the complete message."""


@dataclass
class Sample:
    """The result that one program reported for one case in one round. Times are per call."""

    us: float
    batch_us: List[float] = field(default_factory=list)
    calls_per_batch: int = 0
    wrong: Optional[int] = 0
    """Number of wrong elements; None if the program does not check this operation."""
    foreign_cpus: float = 0.0
    """Average number of CPUs that other processes used during this round."""


@dataclass
class Settings:
    """Settings of one round, the same for every program."""

    batches: int = 5
    timeout_s: float = 120.0


def run(argv: List[str], timeout_s: float, env: Optional[Dict[str, str]] = None) -> Tuple[int, str, str]:
    """Runs a command in its own process group. Ends the command and all its children if the command exceeds its time."""
    process = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, **(env or {})},
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        end(process)
        raise ProgramError(f"{command_name(argv)}: timed out after {timeout_s:g} s") from None
    except BaseException:  # for example Ctrl-C: otherwise the PEs of a launcher would continue to spin
        end(process)
        raise
    return process.returncode, out, err


def end(process: subprocess.Popen) -> None:
    """Sends SIGTERM before SIGKILL, because launchers put their PEs into separate process groups and end them only on SIGTERM."""
    for number, grace_s in ((signal.SIGTERM, 5), (signal.SIGKILL, None)):
        if process.poll() is None:
            os.killpg(process.pid, number)
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                continue
    process.stdout.close()
    process.stderr.close()


def command_name(argv: List[str]) -> str:
    """Returns the command as the report shows it, without the folders of programs, which differ between machines."""
    return " ".join(Path(word).name if word.startswith(("/", "./")) else word for word in argv)


def last_lines(text: str, count: int = 4) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-count:]) or "no message"


class Peer:
    """One of the peer programs (peer_mpi or peer_shmem), started by its launcher."""

    def __init__(self, name: str, label: str, launcher: str, program: Path, extra: Tuple[str, ...] = ()):
        self.name, self.label = name, label
        self.program, self.extra, self.launcher = program, extra, launcher
        self.version = "unknown"
        self.clock_ns: Optional[float] = None

    def command(self, pes: int) -> List[str]:
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return [self.launcher, *root, "--oversubscribe", *self.extra, "-n", str(pes), str(self.program)]

    def own_name(self, op: str) -> Optional[str]:
        """Returns the program's name for `op`; None if the program does not measure this operation."""
        return op

    def supports(self, group: Group) -> bool:
        return self.own_name(group.op) is not None

    def measure(self, group: Group, settings: Settings) -> Dict[int, Sample]:
        if group.op == "init":
            return {0: self.start_to_first_barrier(group.pes, settings)}
        op = self.own_name(group.op)
        argv = self.command(group.pes) + [op, "--batches", str(settings.batches), "--batch-ms", str(BATCH_MS)]
        if any(group.sizes):
            argv += ["--sizes", ",".join(str(size) for size in group.sizes)]
        if group.dirty:
            argv.append("--dirty")
        lines = self.lines(argv, settings.timeout_s)
        samples = {
            line["size"]: Sample(line["median_us"], line["batch_us"], line["calls_per_batch"], line["nwrong"])
            for line in lines
            if line.get("op") == op
        }
        missing = [size for size in group.sizes if size not in samples]
        if missing:
            raise ProgramError(f"{command_name(argv)}: no line for sizes {missing}")
        return samples

    def start_to_first_barrier(self, pes: int, settings: Settings) -> Sample:
        argv = self.command(pes) + ["init", "--t0", str(time.time_ns())]
        lines = self.lines(argv, settings.timeout_s)
        ms = next((line["first_barrier_ms"] for line in lines if "first_barrier_ms" in line), None)
        if ms is None:
            raise ProgramError(f"{command_name(argv)}: no first_barrier_ms in the output")
        return Sample(ms * 1e3, [ms * 1e3], 1)

    def lines(self, argv: List[str], timeout_s: float) -> List[dict]:
        # Does not check the exit status, because the OpenSHMEM program exits without finalising. The last line of output shows whether the program succeeded.
        _, out, err = run(argv, timeout_s, {"SHMEM_SYMMETRIC_SIZE": SYMMETRIC_SIZE})
        lines = []
        for text in out.splitlines():
            if text.startswith("{"):
                try:
                    lines.append(json.loads(text))
                except ValueError:
                    raise ProgramError(f"{command_name(argv)}: not JSON: {text[:200]}") from None
        if not any(line.get("done") for line in lines):
            raise ProgramError(f"{command_name(argv)}: did not finish: {last_lines(err)}")
        for line in lines:
            self.version = line.get("version", self.version)
            self.clock_ns = line.get("clock_ns", self.clock_ns)
        return lines


class OpenShmem(Peer):
    """The OpenSHMEM program. OpenSHMEM has no reduce-scatter and no all-to-all with counts."""

    def own_name(self, op: str) -> Optional[str]:
        return None if op in ("reduce-scatter", "all-to-all-v") else op


class TunedOpenMpi(Peer):
    """Open MPI with a setting that a user might choose for speed. Measures only operations whose algorithm the setting changes."""

    def __init__(self, name: str, launcher: str, program: Path):
        setting, self.names, self.oversubscribed = TUNINGS[name]
        super().__init__(name, f"Open MPI ({name.partition('-')[2]})", launcher, program, setting)

    def own_name(self, op: str) -> Optional[str]:
        return self.names.get(op)

    def supports(self, group: Group) -> bool:
        return super().supports(group) and (self.oversubscribed or group.pes <= (os.cpu_count() or 1))


# For each name: the options of the launcher, the operations with their names in the peer program, and whether to run with more PEs than CPUs.
TUNINGS = {
    # Collectives over a shared segment. These collectives spin, so they are slower by a factor of ten when PEs share a core.
    "openmpi-sm": (
        ("--mca", "coll_sm_priority", "100"),
        {op: op for op in ("barrier", "all-reduce", "broadcast")},
        False,
    ),
    # Copies data twice through shared memory. By default the kernel copies it once (process_vm_readv).
    "openmpi-nocma": (
        ("--mca", "btl_vader_single_copy_mechanism", "none"),
        {**{op: op for op in ("all-reduce", "all-gather", "all-to-all", "broadcast")}, "reduce-scatter": "reduce-scatter-counts"},
        True,
    ),
    # MPI_Reduce_scatter instead of MPI_Reduce_scatter_block: different algorithms for the same result.
    "openmpi-counts": ((), {"reduce-scatter": "reduce-scatter-counts"}, True),
}


# ---- Peerweave: everything that depends on its command line or its JSON is below this line ----

PEERWEAVE_OPS = {"fetch-add": "atomics"}
UNSIZED = ("barrier", "fetch-add", "p")
QUIET_AT_THE_END = ("p", "put-strided")
"""Operations whose calls are completed by one quiet at the end of a batch."""


def peerweave_command(program: str, group: Group, size: int, batches: int, out: str) -> List[str]:
    """Returns the command that measures one case and writes the result to the file `out`."""
    dtype = "int64" if group.op == "p" else "float"
    argv = [program, "bench", PEERWEAVE_OPS.get(group.op, group.op), "-n", str(group.pes), "-d", dtype, "-o", "sum"]
    if group.op not in UNSIZED:
        argv += ["-b", str(size), "-e", str(size), "-f", "2"]
    if group.dirty:
        argv.append("--dirty")
    if group.op in QUIET_AT_THE_END:
        argv.append("--nbi")
    return argv + ["--batches", str(batches), "--batch-ms", str(BATCH_MS), "--json", out]


def peerweave_result(document: dict, group: Group, size: int) -> Sample:
    """Returns the sample in the JSON document of one run."""
    name = f"peerweave bench {group.op}"
    if document.get("peerweave", {}).get("debug_assertions") is not False:
        raise ProgramError(f"{name}: built with debug assertions; build it with --release")
    # For parts of different lengths, the size of the result differs from the requested size.
    rows = [row for row in document.get("results", []) if row.get("size") == size or group.op.endswith("-v")]
    if len(rows) != 1:
        raise ProgramError(f"{name}: expected one result for size {size}, got {len(rows)}")
    # Broadcasts of MPI have one buffer at the root, and broadcasts of OpenSHMEM do not write the root's second buffer. Peerweave's in-place form does the same.
    form = "in_place" if group.op == "broadcast" else "out_of_place"
    placement, batches = rows[0].get(form) or {}, rows[0].get(f"{form}_per_batch") or {}
    us, wrong = placement.get("time"), placement.get("nwrong")
    if not isinstance(us, (int, float)) or not us > 0:
        raise ProgramError(f"{name}: {form}.time is {us!r}, expected microseconds")
    checked = isinstance(wrong, (int, float)) and wrong >= 0
    return Sample(float(us), batches.get("times_us", []), batches.get("iterations", 0), int(wrong) if checked else None)


class Peerweave:
    """`peerweave bench`: one process for each case, with batches as long as the batches of the peer programs."""

    name, label = "peerweave", "Peerweave"

    def __init__(self, program: str):
        self.program = program
        self.clock_ns: Optional[float] = None
        self.version = self.ask_version()

    def ask_version(self) -> str:
        status, out, err = run([self.program, "--version"], 30)
        if status != 0:
            raise ProgramError(f"{command_name([self.program])} --version: status {status}: {last_lines(err)}")
        return out.strip()

    def supports(self, group: Group) -> bool:
        return True

    def measure(self, group: Group, settings: Settings) -> Dict[int, Sample]:
        if group.op == "init":
            return {0: self.start_to_first_barrier(group, settings)}
        return {size: peerweave_result(self.once(group, size, settings.batches, settings), group, size) for size in group.sizes}

    def once(self, group: Group, size: int, batches: int, settings: Settings) -> dict:
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "result.json")
            argv = peerweave_command(self.program, group, size, batches, out)
            status, _, err = run(argv, settings.timeout_s)
            try:
                document = json.loads(Path(out).read_text())
            except (OSError, ValueError):
                raise ProgramError(f"{command_name(argv)}: status {status}, no result: {last_lines(err)}") from None
        # Status 1 means wrong values; the result contains their number.
        if status not in (0, 1):
            raise ProgramError(f"{command_name(argv)}: status {status}: {last_lines(err)}")
        return document

    def start_to_first_barrier(self, group: Group, settings: Settings) -> Sample:
        """Returns the time that the command measures from its own start, plus the time to load the command, measured as the time of `--version`."""
        start = time.monotonic()
        self.ask_version()
        load_ms = (time.monotonic() - start) * 1e3
        document = self.once(Group("barrier", group.pes, False, group.cases), 0, 1, settings)
        peerweave_result(document, group, 0)
        ms = document["peerweave"].get("start_to_first_barrier_ms")
        if not isinstance(ms, (int, float)):
            raise ProgramError(f"peerweave bench barrier: start_to_first_barrier_ms is {ms!r}, expected milliseconds")
        return Sample((ms + load_ms) * 1e3, [(ms + load_ms) * 1e3], 1)
