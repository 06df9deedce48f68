"""Freed memory goes back to the kernel."""

import asyncio
import subprocess
import sys

import pytest

from tests.support.serving import ROOT
from webhook.server import memory

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


SMALL = """
from pathlib import Path
from webhook.server import memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

# Every second block stays: what is freed between them is not at the end of the heap.
blocks = [bytearray(b"x" * 50_000) for _ in range(1000)]
del blocks[::2]
before = resident()
print("none" if not memory.trim() else (before - resident()) >> 20)
"""


def output(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    if done.stdout.strip() == "none":
        pytest.skip("this C library has neither mallopt nor malloc_trim")
    return done.stdout


def test_large_blocks_return_to_the_kernel() -> None:
    assert int(output(SCRIPT)) < 60, "MiB"


def test_a_trim_returns_what_is_free_between_other_blocks() -> None:
    assert int(output(SMALL)) > 15, "MiB"


@pytest.mark.anyio
async def test_trims_repeat_until_the_context_ends() -> None:
    done = asyncio.Event()
    count = 0

    def act() -> bool:
        nonlocal count
        count += 1
        if count == 3:
            done.set()
        return True

    async with memory.trimming(0, act):
        await asyncio.wait_for(done.wait(), 10)
    after = count
    await asyncio.sleep(0.01)
    assert count == after


@pytest.mark.anyio
async def test_without_malloc_trim_nothing_repeats() -> None:
    calls: list[bool] = []

    def act() -> bool:
        calls.append(False)
        return False

    async with memory.trimming(0, act):
        await asyncio.sleep(0.01)
    assert calls == [False]
