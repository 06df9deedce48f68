"""`make fuzz`: coverage-guided fuzzing with atheris, one process per target, for a number of seconds each.

    python -m tests.fuzz --seconds 60 [TARGET ...]

An input that breaks a target is written to `tests/fuzz/found/<target>/`; `test_found.py` runs all of them again.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS

ROOT: Final = Path(__file__).resolve().parents[2]
FOUND: Final = Path(__file__).parent / "found"
_SLOW: Final = 20
"""Seconds for one input. The product's own bounds are far below; a loaded machine is slower."""
_RSS: Final = 2048
"""MiB."""
_MOST: Final = 20_000
"""Bytes of one input."""
_DONE: Final = re.compile(r"Done (\d+) runs in (\d+) second")
_COVERAGE: Final = re.compile(r"cov: (\d+)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument(
        "--corpus", type=Path, help="keep the inputs of the targets in this folder; default: not at all"
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: all of {', '.join(TARGETS)}")
    arguments = parser.parse_args()
    unknown = sorted({*arguments.targets} - {*TARGETS})
    if unknown:
        parser.error(f"unknown target {unknown[0]!r}: choose from {', '.join(TARGETS)}")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        corpus = arguments.corpus or Path(temporary)
        failed = [name for name in arguments.targets or TARGETS if not _run(name, arguments.seconds, corpus / name)]
    if failed:
        print(f"Findings in {FOUND}: {', '.join(failed)}")
    return 1 if failed else 0


def _run(target: str, seconds: int, corpus: Path) -> bool:
    found = FOUND / target
    for folder in (found, corpus):
        folder.mkdir(parents=True, exist_ok=True)
    for index, seed in enumerate(seeds(target, ROOT)):
        (corpus / f"seed-{index}").write_bytes(seed[:_MOST])
    flags = (
        f"-max_total_time={seconds}",
        f"-timeout={_SLOW}",
        f"-rss_limit_mb={_RSS}",
        f"-max_len={_MOST}",
        f"-artifact_prefix={found}/",
    )
    command = [sys.executable, "-m", "tests.fuzz.one", target, *flags, str(corpus.resolve())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    spent = _DONE.search(done.stderr)
    coverage = _COVERAGE.findall(done.stderr)
    figures = f"{spent[1]} inputs in {spent[2]} s, {coverage[-1]} edges" if spent and coverage else "stopped"
    print(f"{target}: {figures}, exit {done.returncode}", flush=True)
    if done.returncode:
        print("\n".join((done.stdout + done.stderr).splitlines()[-40:]))
    if not any(found.iterdir()):
        found.rmdir()
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
