"""Fixtures for every test: a directory of certificates made once, since each costs a key."""

import gc
import os
import sys
from pathlib import Path

import hypothesis
import pytest

from tests.support.serving import make_certificates

# How long an example takes says how busy the machine is; what must be fast has tests that count.
# Each run draws other examples, so a run needs no more of them than Hypothesis' default. `make thorough` runs more.
hypothesis.settings.register_profile("neuron-dra", deadline=None)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("neuron-dra")


# jsonschema imports this checker of IRIs if it is there; that takes three seconds, and no schema here has IRIs.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# Each client of an API server reads the machine's CAs, which takes 60 ms. No test trusts any of them.
os.environ["SSL_CERT_FILE"] = os.devnull


def pytest_collection() -> None:
    """Do not look for garbage among modules and collected tests, which live until the end."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempt them from garbage collection for good."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def tls_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that holds a CA and a serving certificate for localhost."""
    directory = tmp_path_factory.mktemp("tls")
    make_certificates(directory)
    return directory
