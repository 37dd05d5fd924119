"""Reads the conditions of a measurement that do not depend on the programs: processor, kernel, load, versions of the sources."""

import os
import platform
import re
import resource
import subprocess
import time
from pathlib import Path
from typing import Optional


def read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "unknown"


def cpu_model() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", read("/proc/cpuinfo"), re.MULTILINE)
    return match.group(1).strip() if match else platform.processor() or "unknown"


def cpu_identity() -> str:
    """Returns family, model and stepping, because virtual machines often hide the name of the processor."""
    text = read("/proc/cpuinfo")
    values = [re.search(rf"^{key}\s*:\s*(\S+)$", text, re.MULTILINE) for key in ("cpu family", "model", "stepping")]
    return "/".join(value.group(1) if value else "?" for value in values)


def memory_gib() -> Optional[float]:
    match = re.search(r"^MemTotal:\s*(\d+) kB", read("/proc/meminfo"), re.MULTILINE)
    return round(int(match.group(1)) / (1 << 20), 1) if match else None


def load_average() -> float:
    return round(os.getloadavg()[0], 2)


class ForeignCpu:
    """Measures the processor time of all processes except this process and its children. Such processor time disturbs a measurement.

    Only children that have been waited for count as children, so `share` must be called when no child is running.
    """

    def __init__(self):
        self.started = time.monotonic()
        self.all_busy, self.ours = self.busy(), self.own()

    @staticmethod
    def busy() -> float:
        """Returns the busy time of all CPUs in seconds, including time stolen by the hypervisor."""
        words = read("/proc/stat").splitlines()[0].split()[1:]
        user, nice, system, _idle, _iowait, irq, softirq, steal = (int(word) for word in words[:8])
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def own() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in used)

    def share(self) -> float:
        """Returns the average number of CPUs that other processes used since the start: 0.5 is half of a CPU."""
        foreign = (self.busy() - self.all_busy) - (self.own() - self.ours)
        return round(max(0.0, foreign / max(1e-3, time.monotonic() - self.started)), 3)


def wait_until_quiet(quiet: float, at_most_s: float) -> None:
    """Returns when other processes used at most `quiet` CPUs for half a second, or after `at_most_s` seconds."""
    end = time.monotonic() + at_most_s
    while time.monotonic() < end:
        others = ForeignCpu()
        time.sleep(0.5)
        if others.share() <= quiet:
            return


def git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


def slug() -> str:
    words = re.sub(r"\(r\)|\(tm\)|processor|cpu|@.*", " ", cpu_model().lower())
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-") + f"-{os.cpu_count()}cpu"


def describe(repository: Path) -> dict:
    """Returns the properties of the machine and of the sources that the report shows."""
    flags = re.search(r"^flags\s*:\s*(.+)$", read("/proc/cpuinfo"), re.MULTILINE)
    return {
        "cpu": cpu_model(),
        "cpu_family_model_stepping": cpu_identity(),
        "cpus": os.cpu_count(),
        "virtual_machine": bool(flags and "hypervisor" in flags.group(1).split()),
        "memory_gib": memory_gib(),
        "kernel": platform.release(),
        "clocksource": read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "huge_pages": read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "huge_pages_shmem": read("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        "libc": " ".join(platform.libc_ver()),
        "load_average_before": load_average(),
        "git_commit": git(repository, "rev-parse", "HEAD"),
        "git_uncommitted_changes": git(repository, "status", "--porcelain", "--", "crates", "tools", "Cargo.lock") != "",
    }
