"""Freed memory goes back to the kernel."""

import subprocess
import sys

import pytest

from tests.support.serving import ROOT

SCRIPT = """
import ctypes, sys
from pathlib import Path
from webhook.server import memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if not memory.give_back_large_blocks():
    print("none")
    sys.exit()
blocks, small = [], []
for _ in range(3):  # glibc raises its threshold at the first free
    blocks = [bytearray(b"x" * (4 << 20)) for _ in range(20)]
    small.append([bytes(600) for _ in range(1000)])
    blocks.clear()
print(resident() >> 20)
"""


def test_large_blocks_return_to_the_kernel() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True)
    if done.stdout.strip() == "none":
        pytest.skip("this C library has no mallopt")
    assert int(done.stdout) < 60, "MiB"
