"""Fixtures for every test: a directory of certificates made once, since each costs a key."""

import gc
from pathlib import Path

import hypothesis
import pytest

from tests.support.serving import make_certificates

# How long an example takes says how busy the machine is; what must be fast has tests that count.
hypothesis.settings.register_profile("neuron-dra", deadline=None)
hypothesis.settings.load_profile("neuron-dra")


def pytest_collection_finish() -> None:
    """Exempt modules and collected tests, which live until the end, from garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tls_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that holds a CA and a serving certificate for localhost."""
    directory = tmp_path_factory.mktemp("tls")
    make_certificates(directory)
    return directory
