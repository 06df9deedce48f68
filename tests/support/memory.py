"""The memory of a process, as the kernel counts it."""

from pathlib import Path


def resident(pid: int) -> int:
    """Bytes that a process has in memory now."""
    return _field(pid, "VmRSS")


def peak(pid: int) -> int:
    """Bytes that a process has had in memory at most, since its start or since `clear_refs` was written."""
    return _field(pid, "VmHWM")


def _field(pid: int, name: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name}:")))
