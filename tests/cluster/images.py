"""Images for the tests, built without a registry: a base of this machine's own Python, the Dockerfile's images on it,
and a sandbox image.

The builder is buildah with chroot isolation, with storage of its own. The Dockerfile's steps install packages, with the
settings of this machine's pip.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
VENV: Final = "opt/neuron-dra"
TARGETS: Final = ("webhook", "kubelet-plugin")
BASE: Final = "localhost/python:test"
SANDBOX: Final = "localhost/sandbox:test"

_TOOLS: Final = ("sh", "sed", "find", "rm", "cat", "ls", "sleep")
_LIBRARIES: Final = re.compile(r"=> (/\S+)|^\s*(/\S*ld-linux\S*)", re.MULTILINE)
_FOR_WHEELS: Final = (
    *("libstdc++.so.6", "libgcc_s.so.1", "libz.so.1", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"),
    "libresolv.so.2",
)
"""What packages with compiled code may expect of every Linux."""
_SETTINGS: Final = ("index-url", "extra-index-url", "proxy", "timeout", "trusted-host")
_CERTIFICATES: Final = "etc/ssl/certs/ca-certificates.crt"
_LEFT_OUT: Final = ("site-packages", "test", "idlelib", "tkinter", "turtledemo", "__pycache__", "config-*", "*.a")
_PAUSE: Final = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"


class BuilderMissingError(Exception):
    """This machine cannot build images; the message names what it lacks."""


class Builder:
    """buildah with storage in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        """Find the builder.

        Raises:
            BuilderMissingError: there is none, or it cannot work here.
        """
        lacking = [name for name in ("buildah", "cc", "ldd") if shutil.which(name) is None]
        if lacking:
            raise BuilderMissingError(f"no builder for images: {', '.join(lacking)} not on the PATH")
        if os.geteuid() != 0:
            raise BuilderMissingError("no builder for images: buildah needs root here")
        self._folder = folder
        self._storage = ["--root", str(folder / "storage"), "--runroot", str(folder / "run")]

    def run(self, *arguments: str | Path) -> str:
        """Run buildah; its standard output.

        Raises:
            AssertionError: it failed; with its output.
        """
        command = ["buildah", *self._storage, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout.strip()

    def close(self) -> None:
        """Remove all images and containers."""
        self.run("rm", "--all")
        self.run("rmi", "--all", "--force")
        shutil.rmtree(self._folder)

    def base(self) -> None:
        """Make the base image: this machine's Python and pip, a shell, and the libraries that they need."""
        context = self._folder / "base"
        context.mkdir()
        _copy_python(context / "root")
        (context / "root/etc/pip.conf").write_text("".join(f"{line}\n" for line in ["[global]", *_pip_settings()]))
        (context / "Containerfile").write_text(
            "FROM scratch\n"
            "COPY root /\n"
            "ENV PATH=/usr/local/bin:/usr/bin:/bin\n"
            'RUN ["/usr/local/bin/python", "-m", "ensurepip", "--default-pip"]\n'
        )
        self.run("build", "--isolation=chroot", "--tag", BASE, context)

    def sandbox(self) -> None:
        """Make the image of pod sandboxes: one static program that waits."""
        context = self._folder / "sandbox"
        context.mkdir()
        (context / "pause.c").write_text(_PAUSE)
        subprocess.run(["cc", "-static", "-Os", "-o", context / "pause", context / "pause.c"], check=True)
        (context / "Containerfile").write_text('FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n')
        self.run("build", "--isolation=chroot", "--tag", SANDBOX, context)

    def configuration(self) -> Path:
        """A file for `CONTAINERS_STORAGE_CONF`, with which other runs of buildah use this storage."""
        file = self._folder / "storage.conf"
        driver = json.loads(self.run("info"))["store"]["GraphDriverName"]
        file.write_text(
            f'[storage]\ndriver = "{driver}"\ngraphroot = "{self._folder}/storage"\nrunroot = "{self._folder}/run"\n'
        )
        return file

    def build(self, target: str, name: str) -> None:
        """Build a target of the Dockerfile on the base."""
        file = ROOT / "deploy" / "Dockerfile"
        options = ["--isolation=chroot", "--layers", "--build-arg", f"PYTHON_IMAGE={BASE}"]
        self.run("build", *options, "--file", file, "--target", target, "--tag", name, ROOT)

    @contextlib.contextmanager
    def mounted(self, name: str) -> Iterator[Path]:
        """The files of an image, for a while."""
        container = self.run("from", "--pull-never", name)
        try:
            yield Path(self.run("mount", container))
        finally:
            self.run("rm", container)

    def start(self, name: str, *command: str) -> str:
        """Run a command in an image; its standard output."""
        container = self.run("from", "--pull-never", name)
        try:
            return self.run("run", "--isolation=chroot", container, "--", *command)
        finally:
            self.run("rm", container)

    def export(self, names: Iterable[str]) -> Iterator[Path]:
        """Archives of images, for a container runtime to import."""
        for number, name in enumerate(names):
            archive = self._folder / f"image-{number}.tar"
            self.run("push", name, f"docker-archive:{archive}:{name}")
            yield archive
            archive.unlink()


def _copy_python(root: Path) -> None:
    """Copy this machine's Python, some programs, and the libraries that they need, to where images have them."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library, binaries = root / "usr/local/lib" / version, root / "usr/local/bin"
    shutil.copytree(Path(sys.base_prefix) / "lib" / version, library, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    (library / "site-packages").mkdir()
    for folder in (binaries, root / "usr/bin", root / "bin", root / "tmp", (root / _CERTIFICATES).parent):
        folder.mkdir(parents=True)
    shutil.copy(os.path.realpath(sys.executable), binaries / version)
    for name in ("python", "python3"):
        (binaries / name).symlink_to(version)
    tools = [root / "usr/bin" / name for name in _TOOLS]
    for tool in tools:
        shutil.copy(os.path.realpath(str(shutil.which(tool.name))), tool)
    (root / "bin/sh").symlink_to("/usr/bin/sh")
    known = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    needed = {
        found[1]
        for name in _FOR_WHEELS
        if (found := re.search(rf"{re.escape(name)} \(libc6,(?:x86-64|AArch64).*=> (\S+)", known))
    }
    for file in (binaries / version, *tools, *library.rglob("*.so")):
        # ldd fails for programs without libraries.
        done = subprocess.run(["ldd", file], capture_output=True, text=True, check=False)
        needed |= {first or second for first, second in _LIBRARIES.findall(done.stdout)}
    for path in needed:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(path), target)
    (root / "tmp").chmod(0o1777)
    shutil.copy(f"/{_CERTIFICATES}", root / _CERTIFICATES)
    (root / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\n")


def _pip_settings() -> Iterator[str]:
    """Where this machine's pip finds packages, without folders that the image does not have."""
    done = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        name, _, value = line.partition("=")
        kind, _, setting = name.partition(".")
        kept = " ".join(url for url in value.strip("'").split() if "://" not in url or url.startswith("http"))
        if kind == "global" and setting in _SETTINGS and kept:
            yield f"{setting} = {kept}"
    yield f"cert = /{_CERTIFICATES}"
