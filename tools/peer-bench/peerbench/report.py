"""Computes ratios and verdicts from samples, and formats them as Markdown and JSON. Starts no program."""

import statistics
from dataclasses import asdict
from typing import Dict, List, Optional

from .cases import Case
from .programs import TUNINGS, Sample

DEFAULT_PEERS = ("openmpi", "openshmem")
TUNED_PEERS = tuple(TUNINGS)
ALL_PEERS = DEFAULT_PEERS + TUNED_PEERS


class Row:
    """One case with the samples of every program: one sample per round."""

    def __init__(self, case: Case):
        self.case = case
        self.samples: Dict[str, List[Sample]] = {}
        self.errors: Dict[str, str] = {}
        self.absent: List[str] = []
        """Programs that do not support the operation of this case."""

    def median(self, program: str) -> Optional[float]:
        """Returns the median of a program's times over the rounds, in microseconds; None if a value was wrong or nothing was measured."""
        samples = self.samples.get(program)
        if not samples or self.wrong(program):
            return None
        return statistics.median(sample.us for sample in samples)

    def wrong(self, program: str) -> int:
        return sum(sample.wrong or 0 for sample in self.samples.get(program, []))

    def unchecked(self, program: str) -> bool:
        return any(sample.wrong is None for sample in self.samples.get(program, []))

    def foreign(self) -> float:
        """Returns the maximum number of CPUs that other processes used, over the samples of this case."""
        return max((sample.foreign_cpus for samples in self.samples.values() for sample in samples), default=0.0)

    def better(self, peers) -> Optional[float]:
        return min((time for time in map(self.median, peers) if time is not None), default=None)

    def best_tuned(self) -> Optional[str]:
        """Returns the tuned setting with the smallest median; None if no tuned setting was measured."""
        timed = [name for name in TUNED_PEERS if self.median(name) is not None]
        return min(timed, key=self.median, default=None)

    def ratio(self, peers) -> Optional[float]:
        mine, theirs = self.median("peerweave"), self.better(peers)
        return mine / theirs if mine is not None and theirs else None

    def round_ratios(self, peers) -> List[float]:
        """Returns the ratio of each round, which shows how much the ratio varies between rounds."""
        mine = self.samples.get("peerweave", [])
        rounds = []
        for index, sample in enumerate(mine):
            theirs = [self.samples[peer][index].us for peer in peers if len(self.samples.get(peer, [])) > index and not self.wrong(peer)]
            if theirs:
                rounds.append(sample.us / min(theirs))
        return rounds

    def verdict(self, peers) -> str:
        """Returns `met`, `not met`, `no goal`, `wrong values` or `not measured`."""
        if self.wrong("peerweave"):
            return "wrong values"
        if self.case.goal is None and self.case.goal_ms is None:
            return "no goal"
        if self.case.goal_ms is not None:
            mine = self.median("peerweave")
            return "not measured" if mine is None else said(mine <= self.case.goal_ms * 1e3)
        ratio = self.ratio(peers)
        return "not measured" if ratio is None else said(ratio <= self.case.goal)

    def as_json(self) -> dict:
        def against(peers):
            rounds = self.round_ratios(peers)
            return {
                "ratio": self.ratio(peers),
                "lowest_round": min(rounds, default=None),
                "highest_round": max(rounds, default=None),
                "verdict": self.verdict(peers),
            }

        return {
            **asdict(self.case),
            "median_us": {program: self.median(program) for program in self.samples},
            "against_defaults": against(DEFAULT_PEERS),
            "against_best": against(ALL_PEERS),
            "most_foreign_cpus": self.foreign(),
            "no_such_operation": self.absent,
            "errors": self.errors,
            "samples": {program: [asdict(sample) for sample in samples] for program, samples in self.samples.items()},
        }


def said(met: bool) -> str:
    return "met" if met else "not met"


def digits(value: float) -> str:
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def time_cell(row: Row, program: str) -> str:
    if program in row.absent:
        return "-"
    if row.wrong(program):
        return f"{row.wrong(program)} wrong"
    median = row.median(program)
    if median is None:
        return "failed" if program in row.errors else "not run"
    return digits(median) + (" (unchecked)" if row.unchecked(program) else "") + (" (incomplete)" if program in row.errors else "")


def tuned_cell(row: Row) -> str:
    """Returns the time of the fastest tuned setting with its name, or the reason why there is none."""
    best = row.best_tuned()
    if best is not None:
        return f"{time_cell(row, best)} ({best.partition('-')[2]})"
    return next((cell for cell in (time_cell(row, name) for name in TUNED_PEERS) if cell != "-"), "-")


def ratio_cell(row: Row, peers) -> str:
    ratio = row.ratio(peers)
    if ratio is None:
        return "-"
    rounds = row.round_ratios(peers)
    return f"{ratio:.2f} ({min(rounds):.2f}-{max(rounds):.2f})" if rounds else f"{ratio:.2f}"


def goal_cell(case: Case) -> str:
    if case.goal_ms is not None:
        return f"{case.goal_ms:.0f} ms"
    return f"{case.goal:.2f}" if case.goal is not None else "-"


def table(rows: List[Row], quiet: float) -> str:
    """Returns the table as Markdown. Times are in microseconds. Parentheses contain the lowest and the highest ratio of a single round.

    A case during which other processes used more than `quiet` CPUs is marked as disturbed.
    """
    head = (
        "| case | mode | Peerweave | Open MPI | Open MPI tuned | OpenSHMEM | goal | ratio, defaults | met | ratio, best | met |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|\n"
    )
    lines = []
    for row in rows:
        verdicts = [row.verdict(DEFAULT_PEERS), row.verdict(ALL_PEERS)]
        plain = ["-" if verdict == "no goal" else verdict if verdict == "met" else f"**{verdict}**" for verdict in verdicts]
        cells = [
            row.case.name + (f" (disturbed, {row.foreign():.2f})" if row.foreign() > quiet else ""),
            "dirty" if row.case.dirty else "loop",
            time_cell(row, "peerweave"),
            time_cell(row, "openmpi"),
            tuned_cell(row),
            time_cell(row, "openshmem"),
            goal_cell(row.case),
            ratio_cell(row, DEFAULT_PEERS),
            plain[0],
            ratio_cell(row, ALL_PEERS),
            plain[1],
        ]
        lines.append("| " + " | ".join(cells) + " |\n")
    return head + "".join(lines)


def summary(rows: List[Row]) -> str:
    def count(peers):
        verdicts = [row.verdict(peers) for row in rows]
        goals = [verdict for verdict in verdicts if verdict != "no goal"]
        return f"{goals.count('met')} of {len(goals)}"

    return f"Goals met against the peers' defaults: {count(DEFAULT_PEERS)}; against the best of all settings: {count(ALL_PEERS)}."


def markdown(rows: List[Row], about: dict) -> str:
    """Returns the report as a complete Markdown document."""
    machine, versions = about["machine"], about["versions"]
    changes = ", with uncommitted changes" if machine["git_uncommitted_changes"] else ""
    loads = about["load_averages"]
    text = [
        f"# Peerweave's host backend compared with Open MPI and OpenSHMEM, {about['date']}\n",
        f"- Machine: {machine['cpu']} (family/model/stepping {machine['cpu_family_model_stepping']}), {machine['cpus']} CPUs"
        f"{', virtual machine' if machine['virtual_machine'] else ''}, {machine['memory_gib']} GiB, kernel {machine['kernel']}",
        "- Programs: " + "; ".join(f"{name}: {version}" for name, version in versions.items()),
        *([f"- Left out: {', '.join(about['left_out'])}"] if about["left_out"] else []),
        f"- Commit {machine['git_commit']}{changes}",
        f"- Load average (1 minute): {machine['load_average_before']} before, {min(loads, default=0)} to {max(loads, default=0)} during"
        " (the programs themselves raise it)",
        f"- Disturbance: a round during which other processes used more than {about['quiet_cpus']} CPUs is repeated, at most"
        f" {about['retries']} times in a group; a row that is still disturbed is marked `disturbed`, with the CPUs that other processes used.",
        f"- {about['rounds']} rounds; the programs alternate in each round. A round is the median of {about['batches']} batches of about"
        f" {about['batch_ms']} ms; the table has the median over the rounds. f32, sum, out of place. Time: the slowest PE's mean per call.",
        "- dirty: each PE rewrites its input before each call, a barrier follows, and the call is timed separately. loop: calls back to back.",
        "- init: from launch to the first completed barrier.",
        "- ratio: time of Peerweave / time of the faster peer; in parentheses the lowest and the highest ratio of a single round."
        " defaults: Open MPI and OpenSHMEM as installed. best: also Open MPI's tuned settings; the table shows the fastest setting with its name. `-`: the library has no such call,"
        " or the setting does not affect the call.\n",
        table(rows, about["quiet_cpus"]),
        summary(rows) + "\n",
    ]
    problems = [f"- {row.case.name}, {program}: {error}" for row in rows for program, error in row.errors.items()]
    if problems:
        text += ["## Failures\n", *problems, ""]
    return "\n".join(text)
