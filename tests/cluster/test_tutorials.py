"""The tutorials that need a cluster: every command is run in a sandbox, and prints what the page says."""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.controlplane import Assets
from tests.cluster.planes import Planes
from tests.cluster.sandbox import DEFAULT, Sandbox
from tests.support.pages import Reader

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
_NODES = re.compile(r'^make sandbox NODES="(.*)"$', re.MULTILINE)
TYPES = {
    path.stem: tuple(found[1].split()) if (found := _NODES.search(path.read_text())) else DEFAULT
    for path in sorted(TUTORIALS.glob("*.md"))
    if "how-to/emulate.md" in path.read_text()
}
"""Tutorial -> instance types of its nodes."""
AFTER = {"connected-devices": ("how-to/prune.md", "how-to/probe.md")}
"""Tutorial -> other pages that are tried in its sandbox."""


@pytest.fixture
def sandbox(assets: Assets, planes: Planes, request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    if not assets.has("kubelet"):
        pytest.skip(f"no kubelet to test on: {assets.folder} lacks kubelet; set KUBEBUILDER_ASSETS")
    sandbox = Sandbox(planes.take(), TYPES[request.node.callspec.params["name"]])
    try:
        sandbox.start()
        yield sandbox
    finally:
        sandbox.stop()
        planes.give_back(tidy=True)


NEEDING = {"pending": "taints", "scheduler-extension": "shares", "ultraserver": "counters"}
"""Tutorial -> what its pages show."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.needs(NEEDING[name])) if name in NEEDING else name for name in TYPES],
)
def test_the_commands_of_a_tutorial_print_its_output(name: str, sandbox: Sandbox, tmp_path: Path) -> None:
    directory = tmp_path / "reader"
    directory.mkdir()
    shutil.copytree(ROOT / "deploy", directory / "deploy")
    programs = f"{sandbox.plane.assets.kubectl.parent}:{Path(sys.executable).parent}"
    environment = {
        "KUBECONFIG": str(sandbox.plane.admin_kubeconfig),
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
    }
    reader = Reader(directory, environment)
    for page in (f"tutorials/{name}.md", *AFTER.get(name, ())):
        reader.follow((ROOT / "docs" / page).read_text(), patience=20)


def test_the_tutorials_are_found() -> None:
    assert len(TYPES) >= 5
