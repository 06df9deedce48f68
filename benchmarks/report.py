"""`python -m benchmarks.report`: time and memory of `neuron-dra report` for 10,000 workloads.

Three sources: an API server with a Deployment, a ReplicaSet and two pods for each workload, the same Deployments as one
JSON List, and as YAML files. Every workload has another pod template. The command runs as a process of its own.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import yaml
from aiohttp import web

from benchmarks.reviews import Object

WORKLOADS: Final = 10_000
MOST_SECONDS: Final = 10.0
MOST_MIB: Final = 300.0
_NAMESPACES: Final = 40
_COUNTS: Final = (1, 1, 4, 4, 8, 16, 7)
_KINDS: Final = {"deployments": "Deployment", "replicasets": "ReplicaSet"}


def deployment(number: int) -> Object:
    """A workload; every seventh asks for a number of devices that is refused."""
    name = f"train-{number}"
    container = {
        "name": "main",
        "image": f"registry.example/train:{number}",
        "command": ["python", "-m", "train", f"--seed={number}"],
        "env": [{"name": f"OPTION_{at}", "value": f"{number * at}"} for at in range(8)],
        "resources": {"limits": {"memory": f"{number + 1}Mi", "aws.amazon.com/neuron": str(_COUNTS[number % 7])}},
    }
    spec = {"nodeSelector": {"node.kubernetes.io/instance-type": "trn1.32xlarge"}, "containers": [container]}
    namespace = f"team-{number % _NAMESPACES}"
    metadata = {"name": name, "namespace": namespace, "uid": f"d-{number}", "labels": {"app": name}}
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    selector = {"matchLabels": {"app": name}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {"replicas": 2, "selector": selector, "template": template},
    }


def controlled(owner: Object, kind: str, uid: str, body: Object) -> Object:
    reference = {"apiVersion": "apps/v1", "kind": owner["kind"], "name": owner["metadata"]["name"]}
    reference |= {"uid": owner["metadata"]["uid"], "controller": True}
    metadata = {"name": uid, "namespace": owner["metadata"]["namespace"], "uid": uid, "ownerReferences": [reference]}
    return {"kind": kind, "metadata": metadata, **body}


class Api:
    """An API server with these lists, in pages, and with watches that stay silent."""

    def __init__(self, count: int) -> None:
        self._lists: dict[str, list[bytes]] = {"deployments": [], "replicasets": [], "pods": []}
        for number in range(count):
            top = deployment(number)
            middle = controlled(top, "ReplicaSet", f"r-{number}", {"spec": top["spec"]})
            self._add("deployments", top)
            self._add("replicasets", middle)
            for at in range(2):
                running = {"spec": {**top["spec"]["template"]["spec"], "nodeName": f"node-{number % 500}"}}
                running["status"] = {"phase": "Running"}
                self._add("pods", controlled(middle, "Pod", f"p-{number}-{at}", running))

    def _add(self, plural: str, item: Object) -> None:
        self._lists[plural].append(json.dumps(item).encode())

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/apis":
            return web.json_response({"items": [{"metadata": {"name": "apps"}, "versions": [_version()]}]})
        if request.query.get("watch"):
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.sleep(3600)
        selective = "labelSelector" in request.query or "fieldSelector" in request.query
        items = [] if selective else self._lists.get(request.path.rpartition("/")[2], [])
        start = int(request.query.get("continue") or 0)
        end = start + int(request.query.get("limit") or len(items) or 1)
        more = f',"continue":"{end}"' if end < len(items) else ""
        body = b",".join(items[start:end])
        return web.Response(
            body=b'{"kind":"List","metadata":{"resourceVersion":"1"%s},"items":[%s]}' % (more.encode(), body),
            content_type="application/json",
        )

    @contextlib.contextmanager
    def serve(self) -> Iterator[str]:
        """Serve in a thread; the URL."""
        loop = asyncio.new_event_loop()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)

        async def start() -> int:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            return int(runner.addresses[0][1])

        port = loop.run_until_complete(start())
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)


def _version() -> Object:
    resources = [
        {"resource": plural, "responseKind": {"kind": kind}, "scope": "Namespaced", "verbs": ["list"]}
        for plural, kind in _KINDS.items()
    ]
    return {"version": "v1", "resources": resources}


def measured(*arguments: str) -> tuple[int, float, float, float]:
    """Workloads of a report, its seconds, seconds of processor time, and its largest memory in MiB."""
    command = [sys.executable, "-m", "commands", "report", "--output=json", *arguments]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        if process.stdout is None:
            raise click.ClickException("the command has no output")
        found = json.loads(process.stdout.read())
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise click.ClickException(f"{' '.join(command)}: exit code {process.returncode}")
    seconds = time.perf_counter() - started
    return found["summary"]["workloads"], seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


@click.command
@click.option("--workloads", default=WORKLOADS, show_default=True, help="Number of workloads.")
def main(workloads: int) -> None:
    """Print a table; the exit code is 1 if a target is missed."""
    missed = False
    click.echo(f"{workloads} workloads\n{'source':<34} {'seconds':>8} {'CPU s':>8} {'MiB':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for source, arguments in _sources(Path(folder), workloads):
            found, seconds, processor, memory = measured(*arguments)
            if found != workloads:
                raise click.ClickException(f"{source}: {found} of {workloads} workloads were found")
            click.echo(f"{source:<34} {seconds:>8.1f} {processor:>8.1f} {memory:>6.0f}")
            # Processor time: other work on the machine does not count.
            missed = missed or memory > MOST_MIB or processor > MOST_SECONDS
    if missed:
        raise click.ClickException(f"a target is missed: {MOST_SECONDS:g} CPU s, {MOST_MIB:g} MiB")


def _sources(folder: Path, workloads: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    with Api(workloads).serve() as url:
        path = folder / "kubeconfig"
        cluster = {"clusters": [{"name": "c", "cluster": {"server": url}}], "users": [{"name": "u", "user": {}}]}
        context = {"current-context": "m", "contexts": [{"name": "m", "context": {"cluster": "c", "user": "u"}}]}
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **cluster, **context}))
        yield f"API server, {2 * workloads} pods", (f"--kubeconfig={path}",)
    items = [deployment(number) for number in range(workloads)]
    whole = folder / "list.json"
    whole.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items, "metadata": {}}))
    yield "JSON List", (f"--filename={whole}",)
    texts = folder / "yaml"
    texts.mkdir()
    for at in range(0, workloads, 100):
        text = yaml.dump_all(items[at : at + 100], Dumper=yaml.CSafeDumper)
        (texts / f"{at:06}.yaml").write_text(text)
    yield "YAML files of 100 documents", (f"--filename={texts}",)


if __name__ == "__main__":
    main()
