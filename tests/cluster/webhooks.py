"""The webhook under test: the real process, as the ServiceAccount of the real manifests, called by the API server."""

import base64
import contextlib
import re
import resource
import signal
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.api import Answer, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.manifests import is_converted, pod
from tests.cluster.processes import Process, eventually, free_ports
from tests.support.packages import python_path

ROOT: Final = Path(__file__).resolve().parents[2]
MANIFESTS: Final = ROOT / "deploy" / "manifests"
NAMESPACE: Final = "neuron-dra"
CONFIGURATION_KINDS: Final = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


def load(path: Path) -> list[Object]:
    """The documents of a YAML file."""
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


class Webhook:
    """`neuron-dra webhook` on a fixed port: it can stop and come back, with other flags too."""

    def __init__(self, plane: ControlPlane, kubeconfig: Path, code: Path = ROOT) -> None:
        """`code`: a folder with the packages; another one is another build."""
        self._plane = plane
        self._environment = {"PYTHONPATH": python_path(code), "PYTHONSAFEPATH": "1"}
        self._directory = Path(tempfile.mkdtemp(prefix="webhook-", dir=plane.directory))
        self._tls = self._directory / "tls"
        self._tls.mkdir()
        self._kubeconfig = kubeconfig
        self.port, self._metrics_port = free_ports(2)
        serving = plane.authority.issue("webhook", "neuron-dra", hosts=["127.0.0.1"])
        self._authority = plane.authority.files.certificate
        for source, name in (
            (self._authority, "ca.crt"),
            (serving.certificate, "tls.crt"),
            (serving.key, "tls.key"),
        ):
            (self._tls / name).write_bytes(source.read_bytes())
        self._process = self._make()

    def _make(self, *flags: str) -> Process:
        argv: list[str | Path] = [
            Path(sys.executable).parent / "neuron-dra",
            "webhook",
            f"--kubeconfig={self._kubeconfig}",
            "--host=127.0.0.1",
            f"--port={self.port}",
            "--metrics-host=127.0.0.1",
            f"--metrics-port={self._metrics_port}",
            # No load balancer sends requests here, so the drain waits for none.
            "--drain-delay=0",
            f"--tls-dir={self._tls}",
            *flags,
        ]
        return Process("neuron-dra webhook", argv, self._directory / "webhook.log", self._environment)

    def start(self, *flags: str, looked: Callable[[bool], None] = lambda _: None) -> None:
        """Start it; return when it reports that it is ready. `looked` is called after each look, with what it said."""
        self._process = self._make(*flags)
        self._process.start()
        context = ssl.create_default_context(cafile=str(self._authority))
        with httpx.Client(verify=context, trust_env=False, timeout=2) as client:
            self._process.wait_ready(lambda: self._look(client, looked))

    def _look(self, client: httpx.Client, looked: Callable[[bool], None]) -> bool:
        ready = self._ready(client)
        looked(ready)
        return ready

    def _ready(self, client: httpx.Client) -> bool:
        try:
            return client.get(f"https://127.0.0.1:{self.port}/readyz").is_success
        except httpx.HTTPError:
            return False

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self._process.running

    @property
    def pid(self) -> int:
        """Its process id; 0 where it is not there."""
        return self._process.pid if self.running else 0

    def memory(self) -> int:
        """Bytes that it has in memory now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def stop(self) -> int | None:
        """Stop it; returns how it ended."""
        return self._process.stop()

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._process.kill()

    def freeze(self) -> None:
        """SIGSTOP: it takes connections and answers nothing."""
        self._process.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._process.signal(signal.SIGCONT)

    def restart(self, *flags: str) -> None:
        """Stop it and start it again, with flags."""
        self.stop()
        self.start(*flags)

    @contextlib.contextmanager
    def running_with(self, *flags: str) -> Iterator[None]:
        """Run with other flags for a while."""
        self.restart(*flags)
        try:
            yield
        finally:
            self.restart()

    def tail(self) -> str:
        """The end of its log."""
        return self._process.tail()

    def reviews(self) -> float:
        """How many admission reviews it has counted, of all kinds and outcomes."""
        return self._counted(r"neuron_dra_.*reviews_total")

    def review_seconds(self) -> tuple[float, float]:
        """How many reviews it has timed, and their seconds together."""
        count, total = (self._counted(f"neuron_dra_review_duration_seconds_{part}") for part in ("count", "sum"))
        return count, total

    def cached(self, resource: str) -> float:
        """How many objects of a resource it has in its cache."""
        return self._counted("neuron_dra_cache_objects", resource=resource)

    def _counted(self, pattern: str, **labels: str) -> float:
        text = httpx.get(f"http://127.0.0.1:{self._metrics_port}/metrics", trust_env=False).text
        families = text_string_to_metric_families(text)
        samples = [sample for family in families for sample in family.samples]
        wanted = [each for each in samples if labels.items() <= each.labels.items()]
        return sum(sample.value for sample in wanted if re.fullmatch(pattern, sample.name))

    def configurations(self, manifest: str = "webhook.yaml") -> list[Object]:
        """The webhook configurations of a shipped manifest, pointed at this process."""
        return self.pointed(load(MANIFESTS / manifest))

    def pointed(self, documents: Iterable[Object]) -> list[Object]:
        """The webhook configurations among some documents, pointed at this process."""
        found = [document for document in documents if document["kind"] in CONFIGURATION_KINDS]
        bundle = base64.b64encode(self._authority.read_bytes()).decode()
        for configuration in found:
            for webhook in configuration["webhooks"]:
                path = webhook["clientConfig"]["service"]["path"]
                url = f"https://127.0.0.1:{self.port}{path}"
                webhook["clientConfig"] = {"url": url, "caBundle": bundle}
        return found

    def install(self) -> None:
        """Install the configurations; return when the API server acts on them."""
        for configuration in self.configurations():
            self._plane.admin.create(configuration)
        eventually("the API server to call the webhook", lambda: is_converted(self.preview(pod("canary")).body))

    def uninstall(self) -> None:
        """Remove the configurations."""
        for configuration in self.configurations():
            self._plane.admin.delete(configuration["kind"], configuration["metadata"]["name"])

    def preview(self, obj: Object, namespace: str = "default") -> Answer:
        """What would become of an object: a dry run."""
        return self._plane.admin.create(obj, namespace, dry_run=True)

    def wait_warning(self, code: str, obj: Object, namespace: str) -> None:
        """Return when the webhook's watch caches know what makes it warn about an object."""

        def attempt() -> bool:
            return any(code in warning for warning in self.preview(obj, namespace).warnings)

        eventually(f"a warning {code}", attempt)


def install_rbac(plane: ControlPlane) -> Path:
    """Apply the shipped RBAC; returns a kubeconfig of the webhook's ServiceAccount and nothing more."""
    documents = load(MANIFESTS / "rbac.yaml")
    accounts = [each["metadata"] for each in documents if each["kind"] == "ServiceAccount"]
    account = next(each for each in accounts if each["name"] == "neuron-dra")
    namespace = account["namespace"]
    if plane.admin.find("Namespace", namespace) is None:
        made: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        plane.admin.create(made)
    plane.kubectl().within("").must("apply", "-f", str(MANIFESTS / "rbac.yaml"))
    token = plane.kubectl().within(namespace).must("create", "token", account["name"], "--duration=2h").stdout.strip()
    return plane.token_kubeconfig("neuron-dra", token)
