"""Defines the cases to compare, with their goals. programs.py runs the programs, and report.py prints the results."""

from dataclasses import dataclass
from itertools import groupby
from typing import List, Optional

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Case:
    """One row of the table. `size` is the size of the larger buffer of one PE in bytes, as in nccl-tests; 0 for operations without data."""

    op: str
    size: int
    pes: int = 2
    dirty: bool = True
    goal: Optional[float] = None
    """Maximum ratio of Peerweave's time to the time of the faster peer; None if the case has no goal."""
    goal_ms: Optional[float] = None
    """Maximum time of Peerweave in milliseconds, independent of the peers."""

    @property
    def name(self) -> str:
        size = f" {human(self.size)}" if self.size else ""
        return f"{self.op}{size}, {self.pes} PEs"


def human(size: int) -> str:
    """Returns a byte count in the largest binary unit that divides it: 64 KiB is written `64K`."""
    for unit, letter in ((MIB, "M"), (KIB, "K")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{letter}"
    return f"{size}B"


# Calls without an input, and calls so short that reading the clock around each call would take most of the time,
# are timed as a loop (dirty=False) in every program. Puts and gets of 64 MiB are timed both as a loop and dirty, because such
# large buffers are in no cache. Their goals apply to the loop.
CASES: List[Case] = [
    Case("barrier", 0, dirty=False, goal=0.7),
    Case("all-reduce", 8, goal=1.0),
    Case("all-reduce", KIB, goal=0.6),
    Case("all-reduce", 64 * KIB, goal=0.4),
    Case("all-reduce", MIB, goal=0.4),
    Case("all-reduce", 16 * MIB, goal=0.5),
    Case("all-reduce", 64 * MIB, goal=0.35),
    Case("reduce-scatter", 64 * KIB),
    Case("reduce-scatter", MIB, goal=0.4),
    Case("reduce-scatter", 16 * MIB, goal=0.4),
    Case("all-gather", 64 * KIB),
    Case("all-gather", MIB, goal=0.9),
    Case("all-gather", 16 * MIB, goal=0.9),
    Case("all-to-all", 64 * KIB, goal=1.1),
    Case("all-to-all", MIB, goal=1.1),
    Case("all-to-all", 16 * MIB, goal=1.1),
    Case("all-to-all", 8, dirty=False),
    Case("all-to-all-v", 8, dirty=False),
    Case("all-gather-v", 128, dirty=False, goal=0.88),
    Case("broadcast", 64, dirty=False, goal=1.0),
    Case("broadcast", 64 * KIB, goal=1.0),
    Case("broadcast", MIB, goal=1.0),
    Case("broadcast", 16 * MIB, goal=1.0),
    Case("put", 8, dirty=False, goal=1.3),
    Case("put", MIB),
    Case("put", 64 * MIB, dirty=False, goal=0.7),
    Case("put", 64 * MIB),
    Case("get", 8, dirty=False, goal=1.3),
    Case("get", MIB),
    Case("get", 64 * MIB, dirty=False, goal=0.7),
    Case("get", 64 * MIB),
    Case("put-strided", 256, dirty=False),
    Case("p", 8, dirty=False),
    Case("fetch-add", 8, dirty=False),
    Case("ping-pong", 8, dirty=False),
    Case("barrier", 0, pes=8, dirty=False, goal=0.6),
    Case("all-reduce", 8, pes=8, goal=0.6),
    Case("all-reduce", MIB, pes=8, goal=0.4),
    Case("init", 0, dirty=False),
    Case("init", 0, pes=8, dirty=False, goal_ms=30.0),
]


@dataclass(frozen=True)
class Group:
    """Cases that one process measures one after the other. They have the same operation, number of PEs and mode."""

    op: str
    pes: int
    dirty: bool
    cases: tuple

    @property
    def sizes(self) -> List[int]:
        return [case.size for case in self.cases]

    @property
    def name(self) -> str:
        return f"{self.op}, {self.pes} PEs, {'dirty' if self.dirty else 'loop'}"


def groups(cases: List[Case]) -> List[Group]:
    """Returns the cases as groups, in the order of the list. Only neighbouring cases are joined."""
    joined = groupby(cases, key=lambda case: (case.op, case.pes, case.dirty))
    return [Group(op, pes, dirty, tuple(members)) for (op, pes, dirty), members in joined]


def select(names: List[str], pes: List[int], cases: Optional[List[Case]] = None) -> List[Case]:
    """Returns the cases with these operations and PE counts; an empty list selects all. Raises ValueError for an unknown name."""
    cases = CASES if cases is None else cases
    known = {case.op for case in cases}
    unknown = sorted(set(names) - known)
    if unknown:
        raise ValueError(f"--op: unknown {', '.join(unknown)}, expected one of {', '.join(sorted(known))}")
    chosen = [case for case in cases if (not names or case.op in names) and (not pes or case.pes in pes)]
    if not chosen:
        raise ValueError(f"no case has --op {names or 'any'} with --pes {pes or 'any'}")
    return chosen
