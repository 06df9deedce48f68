"""The tutorials that need a cluster: every command is run, and prints what the page says.

They run in the order of the book, in one folder that is empty at first. Tutorials on the same nodes share a sandbox.
"""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.controlplane import Assets
from tests.cluster.planes import Planes
from tests.cluster.sandbox import DEFAULT, Sandbox
from tests.support.pages import Reader, tutorials

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_NODES = re.compile(r'^make sandbox NODES="(.*)"$', re.MULTILINE)
TYPES = {
    path.stem: tuple(found[1].split()) if (found := _NODES.search(path.read_text())) else DEFAULT
    for path in tutorials(DOCS)
    if "how-to/emulate.md" in path.read_text()
}
"""Tutorial -> instance types of its nodes, in the order of the book."""
AFTER = {"connected-devices": ("how-to/prune.md", "how-to/probe.md")}
"""Tutorial -> other pages that are tried in its sandbox."""
pytestmark = pytest.mark.in_order


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reader")


@pytest.fixture(scope="module")
def sandbox_of(assets: Assets, planes: Planes) -> Iterator[Callable[[tuple[str, ...]], Sandbox]]:
    """The running sandbox if it has these nodes, else a new one."""
    if not assets.has("kubelet"):
        pytest.skip(f"no kubelet to test on: {assets.folder} lacks kubelet; set KUBEBUILDER_ASSETS")
    running: list[Sandbox] = []

    def stop() -> None:
        for sandbox in running:
            sandbox.stop()
            planes.give_back(tidy=True)
        running.clear()

    def find(types: tuple[str, ...]) -> Sandbox:
        if not running or tuple(running[0].nodes.values()) != types:
            stop()
            running.append(Sandbox(planes.take(), types))
            running[0].start()
        return running[0]

    try:
        yield find
    finally:
        stop()


NEEDING = {"pending": "taints", "scheduler-extension": "shares", "ultraserver": "counters"}
"""Tutorial -> what its pages show."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.needs(NEEDING[name])) if name in NEEDING else name for name in TYPES],
)
def test_the_commands_of_a_tutorial_print_its_output(
    name: str, folder: Path, sandbox_of: Callable[[tuple[str, ...]], Sandbox]
) -> None:
    sandbox = sandbox_of(TYPES[name])
    programs = f"{sandbox.plane.assets.kubectl.parent}:{Path(sys.executable).parent}"
    environment = {
        "KUBECONFIG": str(sandbox.plane.admin_kubeconfig),
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
    }
    reader = Reader(folder, environment)
    for page in (f"tutorials/{name}.md", *AFTER.get(name, ())):
        reader.follow((DOCS / page).read_text(), patience=20)


def test_the_tutorials_are_found() -> None:
    assert len(TYPES) >= 5
