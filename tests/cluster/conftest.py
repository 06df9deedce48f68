"""Fixtures: a control plane that files use in turn; a webhook per file; a namespace and its fake nodes per test.

Options: `--shuffle SEED` runs the files, and the tests in each, in a random order; `--logs DIR` says where what fails
leaves its logs; `--record FILE` writes the counts of the run, from which docs/versions.md is made.
"""

import collections
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.cluster import failure_logs, ordering, versions
from tests.cluster.allocating import Allocating
from tests.cluster.api import Api
from tests.cluster.controlplane import Assets, AssetsMissingError, ControlPlane
from tests.cluster.kubectl import Kubectl
from tests.cluster.nodes import INSTANCE_TYPE, Fleet
from tests.cluster.planes import OF_TESTS, Planes, started
from tests.cluster.pruning import Prune, pruning
from tests.cluster.webhooks import Webhook, install_rbac
from tests.conformance import objects

if TYPE_CHECKING:
    from tests.cluster.kubelet import Kubelet

_NUMBERS = itertools.count(1)
_HERE: Final = Path(__file__).parent
_SECONDS: Final = 300
"""Time-out of a test that sets none: it waits for processes that share two cores with another worker's."""
_STARTED: Final = pytest.StashKey[dict[Path, float]]()
"""When the first test of each file began, in seconds since the epoch."""
_DIRECTORY: Final = pytest.StashKey[Path]()
"""Holds the directories of all processes."""


# --- options, order, logs -----------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cluster", "tests on a control plane")
    group.addoption(
        "--shuffle", type=int, metavar="SEED", help="run files, and tests in each, in a random order; long files first"
    )
    group.addoption("--logs", type=Path, metavar="DIR", help="folder for logs of what fails (build/cluster-logs)")
    group.addoption("--record", type=Path, metavar="FILE", help="write counts and reasons of skips for this version")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "in_order: each test of the file begins where the one before ended")
    config.addinivalue_line("markers", "needs(*features): runs on versions of Kubernetes that have them (versions.py)")
    config.stash[_STARTED] = {}
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        shutil.rmtree(_logs(config), ignore_errors=True)


def pytest_report_header(config: pytest.Config) -> list[str]:
    seed = config.getoption("--shuffle", None)
    try:
        assets = Assets.locate()
    except AssetsMissingError as error:
        tested = str(error)
    else:
        tested = f"control plane: Kubernetes {versions.text(assets.version)} of {assets.folder}"
    return [tested] if seed is None else [tested, f"random order: --shuffle {seed}"]


def pytest_runtest_setup(item: pytest.Item) -> None:
    needed = [name for marker in item.iter_markers("needs") for name in marker.args]
    if not needed:
        return
    try:
        reason = versions.lacks(Assets.locate().version, needed)
    except AssetsMissingError as error:
        pytest.skip(str(error))
    if reason:
        pytest.skip(reason)


def _logs(config: pytest.Config) -> Path:
    chosen: Path | None = config.getoption("--logs", None)
    return (chosen or config.rootpath / "build" / "cluster-logs").absolute()


class _Item:
    """A collected test, as `ordering` sees it."""

    def __init__(self, item: pytest.Item) -> None:
        self.item = item
        self.file = item.path.stem
        self.in_order = item.get_closest_marker("in_order") is not None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("--shuffle", None)
    ours = [_Item(item) for item in items if item.path.parent == _HERE]
    others = [item for item in items if item.path.parent != _HERE]
    for each in ours:
        if each.item.get_closest_marker("timeout") is None:
            each.item.add_marker(pytest.mark.timeout(_SECONDS))
    ordered = ordering.long_first(ours) if seed is None else ordering.shuffled(ours, seed)
    items[:] = [*others, *(each.item for each in ordered)]


class _Units(LoadFileScheduling):
    """Gives each worker a unit of `ordering` at a time."""

    def _split_scope(self, nodeid: str) -> str:
        return ordering.unit(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return _Units(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[None]:
    report: pytest.TestReport = yield
    if item.path.parent == _HERE:
        began = item.config.stash[_STARTED].setdefault(item.path, call.start)
        if report.failed:
            folder = _logs(item.config) / failure_logs.folder_name(item.nodeid)
            failure_logs.collect(folder, item.config.stash[_DIRECTORY], began, ControlPlane.running)
            report.sections.append(("Logs of all processes", str(folder)))
    return report  # type: ignore[return-value]


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    folder = _logs(config)
    if folder.is_dir():
        terminalreporter.section("logs")
        terminalreporter.line(f"What failed left its logs in {folder}: a folder for each test.")
    record: Path | None = config.getoption("--record", None)
    if record is not None and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        _record(record, terminalreporter.stats)


def _record(file: Path, stats: dict[str, list[Any]]) -> None:
    """Write the counts of this run as those of this version: version -> passed, failed, skipped (reason -> count)."""
    found = json.loads(file.read_text()) if file.exists() else {}
    reasons = collections.Counter(report.longrepr[2].removeprefix("Skipped: ") for report in stats.get("skipped", ()))
    found[versions.text(Assets.locate().version)] = {
        "passed": len(stats.get("passed", ())),
        "failed": len(stats.get("failed", ())) + len(stats.get("error", ())),
        "skipped": dict(sorted(reasons.items())),
    }
    newest_first = sorted(found.items(), key=lambda item: [int(part) for part in item[0].split(".")], reverse=True)
    file.write_text(json.dumps(dict(newest_first), indent=2) + "\n")


# --- fixtures -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def assets() -> Assets:
    try:
        return Assets.locate()
    except AssetsMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session", autouse=True)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the directories of all processes."""
    request.config.stash[_DIRECTORY] = tmp_path_factory.getbasetemp()
    return tmp_path_factory.getbasetemp()


@pytest.fixture(scope="session")
def planes(assets: Assets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planes]:
    planes = Planes(lambda: started(assets, tmp_path_factory.mktemp("control-plane")))
    try:
        yield planes
    finally:
        planes.stop()


@pytest.fixture(scope="module")
def control_plane(planes: Planes, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """The control plane that files use in turn; a file leaves it as it was."""
    yield planes.take()
    left = planes.give_back()
    if left:
        what = "; ".join(left)
        pytest.fail(f"{request.path.name} left its control plane changed: {what}. Undo it in the fixture that did it.")


@pytest.fixture(scope="module")
def lent_control_plane(planes: Planes) -> Iterator[ControlPlane]:
    """The same, for files that change what belongs to the whole cluster: what a file added is deleted after it.

    If it changed or removed something, the next file gets a new one.
    """
    yield planes.take()
    planes.give_back(tidy=True)


@pytest.fixture(scope="module")
def own_control_plane(assets: Assets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """For files that install everything themselves: without DeviceClass and rights."""
    plane = ControlPlane(assets, tmp_path_factory.mktemp("own-control-plane"))
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Api:
    """The API as system:masters."""
    return control_plane.admin


@pytest.fixture(scope="module")
def installed_webhook(control_plane: ControlPlane) -> Iterator[Webhook]:
    """The webhook with its default settings, installed as its manifests say; it knows nothing of files before."""
    webhook = Webhook(control_plane, install_rbac(control_plane))
    try:
        webhook.start()
        webhook.install()
        yield webhook
    finally:
        webhook.uninstall()
        webhook.stop()


@pytest.fixture
def webhook(installed_webhook: Webhook) -> Webhook:
    """The running webhook, even if an earlier test failed while it was down."""
    if not installed_webhook.running:
        installed_webhook.start()
    return installed_webhook


@pytest.fixture
def namespace(control_plane: ControlPlane, api: Api) -> Iterator[str]:
    """A fresh namespace in which pods can be created."""
    name = f"{OF_TESTS}{next(_NUMBERS)}"
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    control_plane.wait_namespace_usable(name)
    yield name
    # The Namespace stays: to delete one takes kube-controller-manager two requests for each of 41 resources.
    empty(api, name)


def empty(api: Api, namespace: str) -> None:
    """Delete what a namespace holds. Controllers go first, then pods by force: no kubelet would ever let them go."""
    for kind in ("CronJob", "Job", "DaemonSet", "Deployment", "StatefulSet", "ReplicaSet"):
        api.delete_all(kind, namespace)
    api.delete_all("Pod", namespace, force=True)
    for kind in ("ResourceClaim", "ResourceClaimTemplate"):
        api.delete_all(kind, namespace)


@pytest.fixture
def kubectl(control_plane: ControlPlane, namespace: str) -> Kubectl:
    """The admin's kubectl in the test's namespace."""
    return control_plane.kubectl().within(namespace)


@pytest.fixture
def fleet(api: Api, namespace: str) -> Iterator[Fleet]:
    """The test's fake nodes, the only ones there are while it runs."""
    fleet = Fleet(api, f"node-{namespace}")
    yield fleet
    fleet.clear()


@pytest.fixture
def allocating(api: Api, namespace: str, fleet: Fleet) -> Allocating:
    """Claims through the scheduler, with admin access in the test's namespace."""
    api.merge("Namespace", namespace, {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}})
    return Allocating(api, namespace, fleet)


@pytest.fixture(scope="module")
def kubelet_sync() -> str:
    """How often the kubelet looks at each pod; empty: its default, which is a minute and up to a half more."""
    return ""


@pytest.fixture(scope="module")
def kubelet(
    assets: Assets, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory, kubelet_sync: str
) -> Iterator["Kubelet"]:
    """A real kubelet as node-1 of type trn2.48xlarge, on a runtime that runs nothing."""
    # Only tests with a node need gRPC.
    from tests.cluster.kubelet import Kubelet

    if not assets.has("kubelet"):
        pytest.skip(f"no kubelet to test on: {assets.folder} lacks kubelet; set KUBEBUILDER_ASSETS")
    directory = tmp_path_factory.mktemp("node")
    kubelet = Kubelet(control_plane, directory, "node-1", {INSTANCE_TYPE: "trn2.48xlarge"}, sync=kubelet_sync)
    try:
        kubelet.start()
        yield kubelet
    finally:
        kubelet.stop()


@pytest.fixture(scope="module")
def prune(control_plane: ControlPlane, installed_webhook: Webhook) -> Iterator[Prune]:
    """`neuron-dra templates`; its namespace is that of the installed webhook."""
    yield from pruning(control_plane)


@pytest.fixture
def priority_classes(api: Api) -> Iterator[None]:
    """Those of the golden folders, before and after conversion: the API server refuses a pod that names another."""
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    bodies = [each for case in objects.MUTATED for each in (objects.sent(case), *objects.mutated(case))]
    specs = [each["spec"] for each in bodies if "priorityClassName" in each["spec"]]
    # A pod that arrives has the number of its class: the plugin Priority of the API server runs before webhooks.
    values = {each["priorityClassName"]: each.get("priority", 7) for each in specs}
    for name, value in values.items():
        api.request("POST", path, json={"metadata": {"name": name}, "value": value})
    yield
    for name in values:
        api.request("DELETE", f"{path}/{name}")
