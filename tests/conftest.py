"""Fixtures for every test: the event loop; certificates made once, since each costs a key; outcomes of disturbances.

Option: `--faults FILE` runs disturbances at full length and size, and writes their table into a page, if there is an
outcome of each: of this run, or of an earlier one.
"""

import dataclasses
import gc
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest

from tests.support import faults, skips
from tests.support.serving import make_certificates

# How long an example takes says how busy the machine is; what must be fast has tests that count.
# `make test` has one result on every machine, so it always draws the same examples. `make thorough` draws others.
hypothesis.settings.register_profile("neuron-dra", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("neuron-dra")


# jsonschema imports this checker of IRIs if it is there; that takes three seconds, and no schema here has IRIs.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# The driver syncs each file that it writes, which takes up to 0.2 s on a disk that is busy, and an emulated node has
# hundreds of folders, which take a journal 3 ms each: temporary folders are in memory, if there is enough of it, also
# those that code and programs make for themselves.
_MEMORY: Final = Path("/dev/shm")
_ENOUGH: Final = 2 * 1024**3
"""Bytes; the tests need a tenth of it."""
if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _ENOUGH:
    for variable in ("PYTEST_DEBUG_TEMPROOT", "TMPDIR"):
        os.environ.setdefault(variable, str(_MEMORY))
    tempfile.tempdir = None  # pytest has asked before

# Each client of an API server reads the machine's CAs, which takes 60 ms. No test trusts any of them.
os.environ["SSL_CERT_FILE"] = os.devnull


def pytest_collection() -> None:
    """Do not look for garbage among modules and collected tests, which live until the end."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempt them from garbage collection for good."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def short_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for sockets, whose paths have 107 bytes at most: `tmp_path` has the name of the test in it."""
    return tmp_path_factory.mktemp("s")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of tests that are coroutines. Both programs use asyncio."""
    return "asyncio"


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Any]:
    """A Chromium (`tests.support.browser.Browser`); skips where none is installed."""
    from tests.support.browser import browsing

    async with browsing() as browser:
        yield browser


@pytest.fixture
async def tab(browser: Any) -> AsyncIterator[Any]:
    """A tab of it, with an empty profile (`tests.support.browser.Page`)."""
    async with browser.tab() as tab:
        yield tab


@pytest.fixture
async def api() -> AsyncIterator[Any]:
    """A fake API server that listens (`tests.support.fake_api.FakeApi`)."""
    from tests.support.fake_api import FakeApi

    async with FakeApi().serve() as api:
        yield api


@pytest.fixture(scope="session")
def tls_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that holds a CA and a serving certificate for localhost."""
    directory = tmp_path_factory.mktemp("tls")
    make_certificates(directory)
    return directory


# --- disturbances -------------------------------------------------------------------------------------------------

_found: Final[list[faults.Outcome]] = []
"""Outcomes of all workers; hooks for reports do not get the configuration."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("faults", "disturbances")
    group.addoption("--faults", type=Path, metavar="FILE", help="full length and size; write the table into FILE")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault: a disturbance with reviews, pods or claims under way")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed:
        _found.extend(faults.from_properties(report.user_properties))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if skipped := skips.by_reason(terminalreporter.stats.get("skipped", ())):
        terminalreporter.section("skipped, by reason")
        for line in skipped:
            terminalreporter.line(line)
    page: Path | None = config.getoption("--faults", None)
    if page is None or not _found:
        return
    terminalreporter.section("disturbances")
    terminalreporter.line(faults.table(_found))
    outcomes = faults.remember(config.rootpath / "build" / "faults.json", _found)
    missing = [each for each in faults.DISTURBANCES if each not in {found.disturbance for found in outcomes}]
    if missing:
        terminalreporter.line(f"{page} is not written: no outcome of {', '.join(missing)}")
        return
    faults.write(page, outcomes, f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}:")
    terminalreporter.line(f"written to {page}")


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether disturbances have their full length and size."""
    return request.config.getoption("--faults", None) is not None


@pytest.fixture
def report_fault(record_property: Callable[[str, object], None]) -> Callable[[faults.Outcome], None]:
    """Report the outcome of a disturbance."""

    def report(outcome: faults.Outcome) -> None:
        record_property("fault", dataclasses.asdict(outcome))

    return report
