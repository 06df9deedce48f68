"""The images as the Dockerfile builds them, on a base of this machine's Python.

Needs root, buildah and a C compiler.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.images import Builder, BuilderMissingError

pytestmark = pytest.mark.timeout(900)

IMAGES: Final = {"webhook": "localhost/neuron-dra", "kubelet-plugin": "localhost/neuron-dra-kubelet-plugin"}
LIMIT: Final = 120 * 2**20
"""Bytes of a virtual environment."""
FORBIDDEN: Final = {
    "webhook": ("grpc", "google", "kubeletplugin", "pip"),
    "kubelet-plugin": ("celpy", "lark", "re2", "cryptography", "starlette", "uvicorn", "webhook", "kubecel", "pip"),
}
START: Final = """
import pathlib, subprocess, sys
pathlib.Path("/tmp/kubeconfig").write_text(
    '{"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"name": "u", "user": {}}],'
    '"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}'
)
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
lines = []
while process.poll() is None and "serving" not in "".join(lines[-1:]):
    lines.append(process.stdout.readline())
process.terminate()
lines.append(process.stdout.read())
print("".join(lines))
print("served, ended with" if "serving" in "".join(lines) else "did not serve, ended with", process.wait(60))
"""
"""Runs a program until it serves."""


# --- images -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def builder() -> Iterator[Builder]:
    """With all images."""
    # Layers need a file system on which overlays can be stacked, and short paths.
    folder = Path(tempfile.mkdtemp(prefix="nd-images-"))
    try:
        builder = Builder(folder)
    except BuilderMissingError as error:
        shutil.rmtree(folder)
        pytest.skip(str(error))
    try:
        builder.base()
        builder.sandbox()
        for target, name in IMAGES.items():
            builder.build(target, f"{name}:test")
        yield builder
    finally:
        builder.close()


@pytest.mark.parametrize("target", IMAGES)
def test_an_image_has_what_its_program_imports_and_is_small(
    builder: Builder, target: str, record_property: Callable[[str, object], None]
) -> None:
    with builder.mounted(f"{IMAGES[target]}:test") as root:
        venv = root / "opt/neuron-dra"
        size = sum(each.lstat().st_blocks * 512 for each in venv.rglob("*"))
        [packages] = venv.glob("lib/python3*/site-packages")
        found = [name for name in FORBIDDEN[target] if (packages / name).exists()]
        compiled = len(list(venv.rglob("*.pyc")))
    record_property("MiB", round(size / 2**20, 1))
    assert found == []
    assert size <= LIMIT
    assert compiled > 500


@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("webhook", "neuron-dra webhook --standalone --port=0 --metrics-port=0 --tls-dir=/tmp/tls"),
        (
            "kubelet-plugin",
            "neuron-dra-kubelet-plugin --node-name=n --kubeconfig=/tmp/kubeconfig --emulate=trn2.48xlarge "
            "--cdi-dir=/tmp/cdi --kubelet-plugins-dir=/tmp/p --kubelet-registry-dir=/tmp/r "
            "--metrics-port=0 --health-port=0",
        ),
    ],
    ids=IMAGES,
)
def test_a_program_starts_serves_and_stops_in_its_image(builder: Builder, target: str, command: str) -> None:
    said = builder.start(f"{IMAGES[target]}:test", "python", "-c", START, *command.split())
    assert said.splitlines()[-1] == "served, ended with 0", said
