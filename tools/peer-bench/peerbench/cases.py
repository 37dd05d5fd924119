"""What is compared, and the goals. Not here: how a program is run (programs.py) or what is printed (report.py)."""

from dataclasses import dataclass
from itertools import groupby
from typing import List, Optional

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Case:
    """One row of the table. `size` is the larger buffer of one PE in bytes, as NCCL counts it; 0 where an operation has none."""

    op: str
    size: int
    pes: int = 2
    dirty: bool = True
    goal: Optional[float] = None
    """At most this ratio of Peerweave's time to the better peer's; None: for information."""
    goal_ms: Optional[float] = None
    """At most this many milliseconds, whatever the peers do."""

    @property
    def name(self) -> str:
        size = f" {human(self.size)}" if self.size else ""
        return f"{self.op}{size}, {self.pes} PEs"


def human(size: int) -> str:
    """A byte count in the largest binary unit that divides it: 64 KiB is written `64K`."""
    for unit, letter in ((MIB, "M"), (KIB, "K")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{letter}"
    return f"{size}B"


# Calls without an input, and calls so short that reading the clock around each would be most of the time,
# are timed as a loop (dirty=False) in every program. Puts and gets of 64 MiB are timed both ways: what is large is in no cache, and the
# goal is that of a loop.
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
    """Cases that one process measures one after the other: same operation, PEs and mode."""

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
    """The cases as groups, in the order of the list; only neighbours are joined."""
    joined = groupby(cases, key=lambda case: (case.op, case.pes, case.dirty))
    return [Group(op, pes, dirty, tuple(members)) for (op, pes, dirty), members in joined]


def select(names: List[str], pes: List[int], cases: Optional[List[Case]] = None) -> List[Case]:
    """The cases of the named operations and PE counts; an empty list selects all. Raises ValueError on an unknown name."""
    cases = CASES if cases is None else cases
    known = {case.op for case in cases}
    unknown = sorted(set(names) - known)
    if unknown:
        raise ValueError(f"--op: unknown {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    chosen = [case for case in cases if (not names or case.op in names) and (not pes or case.pes in pes)]
    if not chosen:
        raise ValueError(f"no case has --op {names or 'any'} with --pes {pes or 'any'}")
    return chosen
