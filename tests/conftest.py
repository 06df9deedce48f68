"""Fixtures for every test: a directory of certificates made once, since each costs a key."""

from pathlib import Path

import hypothesis
import pytest

from tests.support.serving import make_certificates

# How long an example takes says how busy the machine is; what must be fast has tests that count.
hypothesis.settings.register_profile("neuron-dra", deadline=None)
hypothesis.settings.load_profile("neuron-dra")


@pytest.fixture(scope="session")
def tls_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that holds a CA and a serving certificate for localhost."""
    directory = tmp_path_factory.mktemp("tls")
    make_certificates(directory)
    return directory
