"""The generated messages are those of the `.proto` files beside them."""

import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = sorted(Path("kubeletplugin/pb").glob("*.proto"))


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make proto` would write."""
    directory = tmp_path_factory.mktemp("pb")
    outputs = [f"--python_out={directory}", f"--pyi_out={directory}"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, *map(str, SOURCES)], check=True)
    return directory


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
@pytest.mark.parametrize("ending", ["_pb2.py", "_pb2.pyi"])
def test_generated_code_is_up_to_date(generated: Path, source: Path, ending: str) -> None:
    path = source.with_name(source.stem + ending)
    assert path.read_text() == (generated / path).read_text(), "run make proto"
