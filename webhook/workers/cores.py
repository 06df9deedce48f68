"""How many processes are worth starting: cores that we may use, within the CPU limit of our cgroup."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MOST: Final = 4
"""A core answers thousands of reviews per second, and every worker holds caches of its own: on a large node without a
CPU limit, one per core would be memory for nothing."""

_ROOT: Final = Path("/sys/fs/cgroup")
_MEMBERSHIP: Final = Path("/proc/self/cgroup")


def usable(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> int:
    """Workers for `--workers 0`: 1 to `MOST`.

    Args:
        root: where the cgroup file system is mounted.
        membership: the file that names our cgroups.
    """
    return choose(len(os.sched_getaffinity(0)), quotas(root, membership))


def choose(cores: int, limits: Iterator[float] | tuple[float, ...]) -> int:
    """Workers for so many cores and CPU limits in cores. Part of a core is worth a worker, as in Go's GOMAXPROCS."""
    least: float = min((float(cores), *limits))
    return max(1, min(MOST, math.ceil(least)))


def quotas(root: Path, membership: Path) -> Iterator[float]:
    """CPU limits, in cores, of our cgroup and of those around it; nothing where there are none."""
    for line in _read(membership).splitlines():
        hierarchy, controllers, path = (*line.split(":", 2), "", "")[:3]
        if hierarchy == "0":
            for directory in _upwards(root, path):
                quota, _, period = _read(directory / "cpu.max").strip().partition(" ")
                yield from _cores(quota, period)
        elif "cpu" in controllers.split(","):
            for directory in _upwards(root / "cpu", path):
                quota = _read(directory / "cpu.cfs_quota_us").strip()
                yield from _cores(quota, _read(directory / "cpu.cfs_period_us").strip())


def _upwards(root: Path, path: str) -> Iterator[Path]:
    """The cgroup's directory and those above; inside a container, `root` itself is often ours."""
    directory = root / path.lstrip("/")
    while root in directory.parents:
        yield directory
        directory = directory.parent
    yield root


def _cores(quota: str, period: str) -> Iterator[float]:
    """`max` and -1 mean none."""
    if quota.isdigit() and period.isdigit() and int(period):
        yield int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
