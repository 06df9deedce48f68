"""Disturbances of a cluster with two webhook replicas, while pods are created or reviews sent without a pause.

With `--faults` they have the length and size that their names say, otherwise a small part of it.
"""

import base64
import concurrent.futures
import contextlib
import dataclasses
import datetime as dt
import functools
import itertools
import json
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import httpx
import pytest
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families

from certs import material
from tests.cluster.api import Api, ApiError, Object
from tests.cluster.conftest import empty
from tests.cluster.controlplane import ControlPlane
from tests.cluster.manifests import generated_templates, is_converted, pod, template_names
from tests.cluster.processes import eventually
from tests.cluster.releases import NAMESPACE, Release, released
from tests.cluster.services import Replica
from tests.support.faults import Attempts, Outcome
from tests.support.loops import Loop
from tests.support.serving import review

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]

Report = Callable[[Outcome], None]

QUIET = 1.0
"""Seconds of requests before and after a disturbance."""
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def release(lent_control_plane: ControlPlane, full: bool) -> Iterator[Release]:
    with released(lent_control_plane, full=full) as made:
        yield made


@pytest.fixture
def api(release: Release) -> Api:
    return release.plane.admin


@pytest.fixture
def space(release: Release, api: Api) -> Iterator[str]:
    """A namespace of the test's own."""
    name = f"fault-{next(_NUMBERS)}"
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    release.plane.wait_namespace_usable(name)
    yield name
    empty(api, name)


@pytest.fixture
def known(api: Api) -> Iterator[None]:
    """The template that the reviews of `Direct` need exists: without an API server, no replica can look for it."""
    api.create(pod("known"), "default")
    yield
    api.delete("Pod", "known", "default", force=True)


class Direct(Loop):
    """Reviews to the replicas in turn, past the API server: it is away, or it is what is disturbed."""

    def __init__(self, replicas: list[Replica]) -> None:
        super().__init__(*(functools.partial(self._turn, each) for each in replicas), pause=0.01)
        self.attempts = Attempts()
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        headers = {"content-type": "application/json"}
        self._client = httpx.Client(verify=context, trust_env=False, timeout=5, headers=headers)
        self._body = json.dumps(review(namespace="default", object=pod("direct"), dryRun=True)).encode()

    def __enter__(self) -> Self:
        super().__enter__()
        eventually("the first reviews", lambda: self.done > 10)
        return self

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        self._client.close()

    def _turn(self, replica: Replica) -> None:
        began = time.monotonic()
        try:
            answer = self._client.post(
                f"https://{replica.address}:{replica.port}/mutate?timeout=5s", content=self._body
            )
        except httpx.HTTPError:
            self.attempts.add(began, failed=True)
            return
        response = answer.json()["response"] if answer.is_success else {"allowed": False}
        allowed = bool(response["allowed"])
        self.attempts.add(began, failed=not allowed, lost=allowed and "patch" not in response)


@contextlib.contextmanager
def without_api_server(plane: ControlPlane) -> Iterator[None]:
    """Kill kube-apiserver; start it again at the end of the block, and return when it is ready.

    The controller manager starts again, too: after an outage it waits for a minute and more before it makes
    ServiceAccounts, without which no pod can be created in a new namespace.
    """
    plane.apiserver.kill()
    try:
        yield
    finally:
        plane.apiserver.start()
        plane.apiserver.wait_ready(plane.admin.healthy)
        plane.controller_manager.kill()
        plane.controller_manager.start()


def total(replicas: list[Replica], series: str) -> float:
    """The sum of a series over its labels and all replicas."""
    texts = (
        httpx.get(f"http://127.0.0.1:{each.metrics_port}/metrics", trust_env=False, timeout=10).text
        for each in replicas
    )
    samples = (sample for text in texts for family in text_string_to_metric_families(text) for sample in family.samples)
    return sum(sample.value for sample in samples if sample.name == series)


def create(api: Api, attempts: Attempts, manifest: Object, namespace: str) -> Object | None:
    """Create a pod for real; what is stored, or None where it was refused."""
    began = time.monotonic()
    try:
        stored = api.create(manifest, namespace).body
    except (ApiError, httpx.HTTPError):
        attempts.add(began, failed=True)
        return None
    attempts.add(began, lost=not is_converted(stored))
    return stored


# --- the API server -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("known")
def test_the_api_server_is_gone(release: Release, api: Api, space: str, full: bool, report_fault: Report) -> None:
    """Replicas answer what they know, stay ready, and create templates again as soon as it is back."""
    with Direct(release.replicas) as reviews:
        with without_api_server(release.plane):
            time.sleep(60 if full else 5)
            assert all(replica.ready() for replica in release.replicas)
        over = time.monotonic()

        def converts() -> bool:
            stored = create(api, reviews.attempts, pod(f"back-{next(_NUMBERS)}"), space)
            return stored is not None and is_converted(stored)

        eventually("a pod whose template is new", converts)
        assert generated_templates(api, space)
    outcome = Outcome.of("API server gone for 60 s", "reviews", reviews.attempts.all(), over)
    assert outcome.lost == 0
    assert outcome.recovered < 30
    report_fault(outcome)


@pytest.mark.usefixtures("known")
def test_watches_that_are_cut_and_expired(release: Release, api: Api, space: str, report_fault: Report) -> None:
    """A new API server does not know old versions: replicas list again, and see what has changed meanwhile."""
    series = "neuron_dra_cache_expired_total"
    before = total(release.replicas, series)
    with Direct(release.replicas) as reviews:
        with without_api_server(release.plane):
            time.sleep(QUIET)
        over = time.monotonic()
        api.merge("Namespace", space, {"metadata": {"annotations": {"neuron.aws.com/convert": "off"}}})

        def seen() -> bool:
            return not any(is_converted(api.create(pod("p"), space, dry_run=True).body) for _ in range(10))

        eventually("both replicas to see the change", seen)
        eventually("an answer 410", lambda: total(release.replicas, series) > before)
        time.sleep(QUIET)
    outcome = Outcome.of("watches cut, and expired when they resume (410)", "reviews", reviews.attempts.all(), over)
    assert (outcome.failed, outcome.lost) == (0, 0)
    report_fault(outcome)


def compact(plane: ControlPlane) -> None:
    """Remove all old versions from etcd."""
    etcd = f"http://127.0.0.1:{plane.etcd_port}/v3"
    key = base64.b64encode(b"/").decode()
    found = httpx.post(f"{etcd}/kv/range", json={"key": key, "limit": "1"}, trust_env=False)
    revision = found.raise_for_status().json()["header"]["revision"]
    body = {"revision": revision, "physical": True}
    httpx.post(f"{etcd}/kv/compaction", json=body, trust_env=False, timeout=60).raise_for_status()


def test_etcd_is_compacted(release: Release, api: Api, space: str, report_fault: Report) -> None:
    with release.load(space) as reviews:
        eventually("the first reviews", lambda: reviews.done > 10)
        for number in range(5):
            api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": f"a-{number}"}}, space)
            compact(release.plane)
        over = time.monotonic()
        time.sleep(QUIET)
    outcome = reviews.outcome("etcd compacted", over)
    assert (outcome.failed, outcome.lost) == (0, 0), reviews.figures
    report_fault(outcome)


# --- templates ----------------------------------------------------------------------------------------------------


def test_templates_are_deleted_under_us(api: Api, space: str, full: bool, report_fault: Report) -> None:
    """Every pod gets its claim: the next pod that a replica sees after the deletion brings the template back."""
    attempts = Attempts()

    def delete() -> None:
        for name in generated_templates(api, space):
            api.delete("ResourceClaimTemplate", name, space)

    names = []
    with Loop(delete, pause=0.1):
        for number in range(300 if full else 40):
            stored = create(api, attempts, pod(f"p-{number}"), space)
            names += [stored["metadata"]["name"]] if stored else []
    end = time.monotonic()

    def back() -> bool:
        create(api, attempts, pod(f"last-{next(_NUMBERS)}"), space)
        return bool(generated_templates(api, space))

    eventually("the template", back)

    def claimed() -> bool:
        without = [
            each["metadata"]["name"]
            for each in api.list("Pod", space)
            if not each.get("status", {}).get("resourceClaimStatuses")
        ]
        assert not without, f"{len(without)} pods have no claim"
        return True

    eventually("every pod to have its claim", claimed, timeout=120)
    outcome = Outcome.of("template deleted every 0.1 s", "pods", attempts.all(), end)
    assert len(names) > 0
    assert outcome.lost == 0
    report_fault(dataclasses.replace(outcome, recovered=max(outcome.recovered, time.monotonic() - end)))


# --- replicas -----------------------------------------------------------------------------------------------------


def test_one_replica_is_killed(release: Release, api: Api, space: str, report_fault: Report) -> None:
    with release.load(space) as reviews:
        eventually("the first reviews", lambda: reviews.done > 10)
        victim = release.replicas[0]
        killed = time.monotonic()
        victim.process.kill()
        release.endpoints.wait_out(victim.name)
        calm = time.monotonic()
        time.sleep(QUIET)
        release.bury(victim)
        release.surge()
        time.sleep(QUIET)
    outcome = reviews.outcome("one of two webhook replicas killed", killed)
    assert outcome.lost == 0
    assert not reviews.since(calm).failed, str(reviews.since(calm))
    report_fault(outcome)


def test_all_replicas_are_killed(release: Release, api: Api, space: str, report_fault: Report) -> None:
    """`failurePolicy: Fail`: pods are refused meanwhile, and none is admitted unconverted."""
    with release.load(space) as reviews:
        eventually("the first reviews", lambda: reviews.done > 10)
        for victim in list(release.replicas):
            release.bury(victim)
        time.sleep(QUIET)
        release.surge()
        release.surge()
        over = time.monotonic()
        eventually("reviews to be answered again", lambda: not reviews.since(time.monotonic() - 0.5).failed)
        time.sleep(QUIET)
    outcome = reviews.outcome("all webhook replicas killed, and started again", over)
    assert outcome.failed > 0
    assert outcome.lost == 0
    assert outcome.recovered < 30
    report_fault(outcome)


def test_the_clock_jumps(release: Release, api: Api, space: str, report_fault: Report) -> None:
    """Certificates and Leases follow the API server's clock, so no replica finds its own certificate expired."""
    if not release.clock.available:
        pytest.skip("no C compiler (cc) to make a clock that jumps")
    before = release.secret()["data"]["tls.crt"]
    with release.load(space) as reviews:
        eventually("the first reviews", lambda: reviews.done > 10)
        try:
            for days, word in ((100, "ahead of"), (-100, "behind")):
                release.clock.shift(days)

                def noticed(word: str = word) -> bool:
                    return all(f"{word} the API server's" in each.readiness() for each in release.replicas)

                eventually(f"every replica to report that its clock is {word} the API server's", noticed, timeout=120)
                assert all(each.ready() for each in release.replicas)
                time.sleep(QUIET)
        finally:
            release.clock.shift(0)
        over = time.monotonic()
        time.sleep(QUIET)
    outcome = reviews.outcome("clock of the webhook 100 days ahead, then 100 days behind", over)
    assert (outcome.failed, outcome.lost) == (0, 0), str(reviews.figures)
    assert release.secret()["data"]["tls.crt"] == before
    report_fault(outcome)


def test_the_certificate_expires(release: Release, api: Api, space: str, report_fault: Report) -> None:
    """An expired pair in the Secret replaces no valid one; a replica writes a new one."""
    held = material.read({key: base64.b64decode(value) for key, value in release.secret()["data"].items()})
    assert held.authority is not None
    assert held.leaf is not None
    names = held.leaf.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    hour = dt.timedelta(hours=1)
    past = dt.datetime.now(dt.UTC) - 2 * hour
    expired = material.issue_serving(held.authority, "neuron-dra", hosts, now=past, lifetime=hour)
    pair = {"tls.crt": expired.certificate_pem, "tls.key": expired.key_pem}
    patch: dict[str, Any] = {"data": {key: base64.b64encode(value).decode() for key, value in pair.items()}}
    with release.load(space) as reviews:
        eventually("the first reviews", lambda: reviews.done > 10)
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets/neuron-dra-tls"
        api.request("PATCH", path, json=patch, headers={"content-type": "application/merge-patch+json"})
        written = time.monotonic()

        def renewed() -> bool:
            return release.secret()["data"]["tls.crt"] != patch["data"]["tls.crt"]

        eventually("a new certificate", renewed, timeout=120)
        time.sleep(QUIET)
    outcome = reviews.outcome("serving certificate expired", written)
    assert (outcome.failed, outcome.lost) == (0, 0), str(reviews.figures)
    report_fault(outcome)


# --- many pods ----------------------------------------------------------------------------------------------------


def test_many_pods_at_once(release: Release, api: Api, full: bool, report_fault: Report) -> None:
    """Each of 64 clients creates a refused pod again, as a controller does. The pods end with the control plane."""
    count = 10_000 if full else 200
    attempts = Attempts()
    name = f"fault-{next(_NUMBERS)}"
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    release.plane.wait_namespace_usable(name)

    def made(number: int) -> Object:
        return eventually("the pod to be admitted", lambda: create(api, attempts, pod(f"p-{number}"), name))

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        stored = list(pool.map(made, range(count)))
    over = time.monotonic()
    [template] = {each for body in stored for each in template_names(body)}
    assert generated_templates(api, name) == [template]
    outcome = Outcome.of("10,000 pods at once", "pods", attempts.all(), over)
    assert outcome.lost == 0
    report_fault(outcome)
