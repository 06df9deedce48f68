"""Freed memory goes back to the kernel."""

import asyncio
import contextlib
import functools
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.serving import ROOT, Client, Process, review
from webhook.server import app as memory
from webhook.server.certificates import running

SCRIPT = """
import ctypes, sys
from pathlib import Path
from webhook.server import app as memory

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
import os
from pathlib import Path
from webhook.server import app as memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

# mallopt keeps the blocks in the heap. Every second one stays, so what is freed is not at the end of the heap.
memory.give_back_large_blocks()
blocks = [bytearray(b"x" * 200_000) for _ in range(300)]
del blocks[::2]
before = resident()
trim = memory.trimmer()
print("none" if trim is None else [trim(), (before - resident()) >> 20][1])
"""


def output(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    if done.stdout.strip() == "none":
        pytest.skip("this C library has neither mallopt nor malloc_trim")
    return done.stdout


def test_large_blocks_return_to_the_kernel() -> None:
    assert int(output(SCRIPT)) < 60, "MiB"


def test_a_trim_returns_free_memory_between_used_blocks() -> None:
    assert int(output(SMALL)) > 15, "MiB"


def page_faults(process: Process) -> int:
    return int(Path(f"/proc/{process.process.pid}/stat").read_text().rpartition(")")[2].split()[7])


@pytest.mark.parametrize("size", [0, 10_000, 60_000], ids=lambda size: f"{size} bytes")
def test_small_reviews_reuse_their_memory(tmp_path: Path, size: int) -> None:
    arguments = ["-m", "webhook", "webhook", "--standalone", "--host=127.0.0.1", "--port=0", "--metrics-port=0"]
    with Process([*arguments, f"--tls-dir={tmp_path}", "--log-format=json"], cwd=tmp_path) as process:
        url = process.event("serving")["url"][0]
        labels = {"x": "x" * size}
        body = review(object={"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": labels}, "spec": {}})
        with Client(url, tmp_path / "ca.crt") as client:
            for _ in range(50):
                client.review(body)
            before, reviews = page_faults(process), 200
            for _ in range(reviews):
                assert client.review(body).status == 200
            faults = page_faults(process) - before
    assert faults / reviews < 1, "a block from mmap has a page fault for each page that is written"


async def test_trims_repeat_until_the_context_ends() -> None:
    done = asyncio.Event()
    count = 0

    def trim() -> None:
        nonlocal count
        count += 1
        if count == 3:
            done.set()

    async with contextlib.AsyncExitStack() as stack:
        await running(stack, {"memory": functools.partial(memory.trimming, trim, seconds=0)})
        await asyncio.wait_for(done.wait(), 10)
    after = count
    await asyncio.sleep(0.01)
    assert count == after


async def test_the_webhook_runs_without_malloc_trim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_function", lambda _: None)
    assert not memory.give_back_large_blocks()
    before = asyncio.all_tasks()
    async with contextlib.AsyncExitStack() as stack:
        await running(stack, memory.upkeep())
        assert asyncio.all_tasks() == before
