"""An emulated node for every test."""

from pathlib import Path

import pytest

from tests.kubeletplugin.fakes import FakeApi, FakeClock, Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A trn2.48xlarge."""
    return Node(tmp_path)


@pytest.fixture
def ultra(tmp_path: Path) -> Node:
    """A trn2u.48xlarge, in an UltraServer."""
    return Node(tmp_path, "trn2u.48xlarge")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()
