"""Records in which order work enters the files of this repository, and how often it goes from one to another.

`python -m tests.architecture.walks` prints the walks as docs/architecture.md has them.
"""

import asyncio
import contextlib
import dataclasses
import functools
import io
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click

from tests.support.clusters import trainium
from tests.support.invoking import invoke_offline
from tests.support.packages import PACKAGES
from webhook.edge import logs
from webhook.edge.bodies import BodyReader
from webhook.edge.endpoints import RequestLimits, Telemetry, build
from webhook.edge.metrics import Metrics
from webhook.edge.shedding import Lifecycle
from webhook.reviews import chain
from webhook.reviews.worker_threads import Inline
from webhook.server.standalone import StandaloneBackend

ROOT: Final = Path(__file__).resolve().parents[2]
EXAMPLE: Final = "deploy/examples/cores-on-trn2/pod.yaml"
OTHER: Final = "deploy/examples/legacy-pod/pod.yaml"
"""A file that imports the same modules, and whose decision is another."""
PACK: Final = "policies/packs/owner-label.yaml"


@dataclasses.dataclass(frozen=True)
class Walk:
    """What one piece of work enters.

    Attributes:
        files: in the order of their first calls, from the root of the repository.
        switches: calls from one file to another.
    """

    files: tuple[str, ...]
    switches: int


class Recorder:
    """Counts calls of functions of this repository; those of imported modules' bodies are left out."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.switches = 0
        self._last = ""
        self._places: dict[str, str] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or frame.f_code.co_name == "<module>":
            return
        place = self._place(frame.f_code.co_filename)
        if place:
            self.files.setdefault(place)
            self.switches += place != self._last
            self._last = place

    def _place(self, filename: str) -> str:
        """The file from the root of the repository; empty for others."""
        if filename not in self._places:
            path = Path(filename)
            inside = any(path.is_relative_to(ROOT / each) for each in PACKAGES)
            self._places[filename] = path.relative_to(ROOT).as_posix() if inside else ""
        return self._places[filename]

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record until the context ends."""
        before = sys.getprofile()
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(before)

    def walk(self) -> Walk:
        return Walk(tuple(self.files), self.switches)


def pod() -> Walk:
    """A review of the first pod of its kind, from the endpoint to the answer."""
    backend = StandaloneBackend()
    reviewers = chain.reviewers(trainium(), backend.view, backend.templates, Inline())
    telemetry = Telemetry(Metrics("0"), logs.DecisionLog(io.BytesIO(), "json", enabled=True))
    application = build(reviewers, {}, Lifecycle(), RequestLimits(BodyReader(1 << 20, 5)), telemetry)
    recorder = Recorder()

    async def send(containers: str, amount: str) -> None:
        body = json.dumps(_review(containers, amount)).encode()
        scope = {
            "type": "http",
            "path": "/mutate",
            "method": "POST",
            "query_string": b"timeout=10s",
            "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))],
            "client": ("127.0.0.1", 1),
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def answer(_: Any) -> None:
            pass

        await application(scope, receive, answer)

    async def both() -> None:
        await send("first", "8")  # What is made once for each process.
        with recorder.recording():
            await send("main", "4")

    asyncio.run(both())
    return recorder.walk()


def _review(container: str, amount: str) -> dict[str, Any]:
    limits = {"aws.amazon.com/neuron": amount}
    item = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ml"},
        "spec": {"containers": [{"name": container, "image": "x", "resources": {"limits": limits}}]},
    }
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    request = {
        "uid": "0b4c6b29-b77b-447e-bec2-f8c612c82906",
        "kind": kind,
        "resource": resource,
        "operation": "CREATE",
        "namespace": "ml",
        "userInfo": {"username": "u"},
        "object": item,
        "dryRun": False,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def command(*arguments: str, before: tuple[str, ...]) -> Walk:
    """A command. `before`: arguments of a first run, which imports the modules."""

    def run(given: tuple[str, ...]) -> None:
        result = invoke_offline(*given)
        assert result.exit_code == 0, result.output

    run(before)
    recorder = Recorder()
    with recorder.recording():
        run(arguments)
    return recorder.walk()


def of_file(name: str) -> Walk:
    """A command with one pod in a file."""
    rest = ("--families", "trn2")
    return command(name, "-f", str(ROOT / EXAMPLE), *rest, before=(name, "-f", str(ROOT / OTHER), *rest))


def policy_test() -> Walk:
    """`policy test` of one shipped file."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "policy.yaml").write_bytes((ROOT / PACK).read_bytes())
        return command("policy", "test", folder, before=("policy", "test", folder))


WALKS: Final[dict[str, Callable[[], Walk]]] = {
    "pod": pod,
    "explain -f": functools.partial(of_file, "explain"),
    "convert -f": functools.partial(of_file, "convert"),
    "policy test": policy_test,
}


def rows(walk: Walk) -> list[tuple[str, tuple[str, ...]]]:
    """Folder and names of modules, for each run of files of one folder."""
    runs = itertools.groupby(walk.files, lambda each: each.rpartition("/")[0])
    return [(folder, tuple(each.rpartition("/")[2].removesuffix(".py") for each in files)) for folder, files in runs]


def main_json() -> None:
    """Print all walks as JSON: `python -m tests.architecture.walks json`."""
    click.echo(json.dumps({name: dataclasses.asdict(record()) for name, record in WALKS.items()}))


def main_text() -> None:
    """Print all walks as tables."""
    for name, record in WALKS.items():
        found = record()
        click.echo(f"{name}: {len(found.files)} files, {found.switches} switches")
        for folder, modules in rows(found):
            click.echo(f"| `{folder}/` | {', '.join(f'`{module}`' for module in modules)} | |")


if __name__ == "__main__":
    (main_json if sys.argv[1:] == ["json"] else main_text)()
