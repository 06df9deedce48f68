"""Fixtures for every test: a directory of certificates made once, since each costs a key."""

from pathlib import Path

import pytest

from tests.support.serving import make_certificates


@pytest.fixture(scope="session")
def tls_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that holds a CA and a serving certificate for localhost."""
    directory = tmp_path_factory.mktemp("tls")
    make_certificates(directory)
    return directory
