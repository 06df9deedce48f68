"""`neuron-dra templates prune` on a real control plane, with the rights of its manifest and the webhook at work."""

import contextlib
import functools
import itertools
import json
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.kubectl import Kubectl
from tests.cluster.manifests import LNC, MANAGED_BY, container, generated_templates, pod, template_names
from tests.cluster.processes import eventually
from tests.cluster.pruning import COMMAND, Prune
from tests.cluster.webhooks import MANIFESTS
from tests.deploy.charts import find, render
from tests.support.loops import Loop

pytestmark = pytest.mark.usefixtures("webhook")

MARK = "neuron.aws.com/prune-after"
TEMPLATE = "ResourceClaimTemplate"


def unused(api: Api, namespace: str, devices: int = 4, annotations: dict[str, str] | None = None) -> str:
    """A template that the webhook made for a pod that is no more."""
    name = f"gone-{devices}"
    made = api.create(pod(name, container(neuron=devices), annotations=annotations), namespace).body
    api.delete("Pod", name, namespace, force=True)
    [template] = template_names(made)
    return template


def mark_of(api: Api, name: str, namespace: str) -> str | None:
    mark: str | None = api.get(TEMPLATE, name, namespace)["metadata"].get("annotations", {}).get(MARK)
    return mark


@contextlib.contextmanager
def waiting(prune: Prune, api: Api, namespace: str, name: str) -> Iterator["subprocess.Popen[str]"]:
    """A run that has marked a template and is in its grace, which is longer than the test."""
    argv = prune.argv("prune", namespace, "--older-than=0s", "--grace=10m")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            eventually("the mark", lambda: mark_of(api, name, namespace))
            yield child
        finally:
            child.kill()


def test_unused_templates_are_removed_and_used_ones_stay(api: Api, namespace: str, prune: Prune) -> None:
    gone = unused(api, namespace)
    [kept] = template_names(api.create(pod("lives", container(neuron=1)), namespace).body)
    assert prune.must(namespace) == {gone: "removed"}
    assert generated_templates(api, namespace) == [kept]
    assert mark_of(api, kept, namespace) is None


def test_an_unused_template_with_settings_is_removed(api: Api, namespace: str, prune: Prune) -> None:
    gone = unused(api, namespace, annotations={LNC: "1"})
    assert "parameters" in json.dumps(api.get(TEMPLATE, gone, namespace)["spec"])
    assert prune.must(namespace) == {gone: "removed"}


def test_the_webhook_creates_a_pruned_template_again(api: Api, namespace: str, prune: Prune) -> None:
    gone = unused(api, namespace)
    prune.must(namespace)
    assert generated_templates(api, namespace) == []
    assert template_names(api.create(pod("later"), namespace).body) == [gone]
    assert generated_templates(api, namespace) == [gone]


def test_a_dry_run_and_a_list_change_nothing(api: Api, namespace: str, prune: Prune) -> None:
    gone = unused(api, namespace)
    before = api.get(TEMPLATE, gone, namespace)
    assert prune.must(namespace, "--dry-run") == {gone: "candidate"}
    code, table, _ = prune.run("list", namespace)
    assert (code, table.splitlines()[1].split()[:2]) == (0, [namespace, gone])
    assert api.get(TEMPLATE, gone, namespace) == before


def test_young_templates_stay(api: Api, namespace: str, prune: Prune) -> None:
    unused(api, namespace)
    assert prune.must(namespace, older_than="1h") == {}


def test_only_templates_that_the_webhook_created_are_removed(
    api: Api, namespace: str, kubectl: Kubectl, prune: Prune
) -> None:
    four, eight = (api.get(TEMPLATE, unused(api, namespace, count), namespace) for count in (4, 8))
    for each in (four, eight):
        api.delete(TEMPLATE, each["metadata"]["name"], namespace)

    def make(verb: str, manager: str, name: str, spec: Object, labels: Object) -> None:
        item = {**four, "metadata": {"name": name, "labels": labels}, "spec": spec}
        kubectl.must(verb, f"--field-manager={manager}", "-f", "-", stdin=json.dumps(item))

    names = [each["metadata"]["name"] for each in (four, eight)]
    make("create", "neuron-dra", names[0], eight["spec"], MANAGED_BY)  # another spec than its name says
    make("apply", "gitops", names[1], eight["spec"], MANAGED_BY)  # printed by `neuron-dra convert`, applied by a user
    make("create", "neuron-dra", "neuron-4-0123456789ab", four["spec"], MANAGED_BY)  # forged name
    make("create", "neuron-dra", "my-devices", four["spec"], MANAGED_BY)  # a name of its own
    labelled = unused(api, namespace, 1)
    flags = ("--overwrite", "--field-manager=neuron-dra")
    kubectl.must("label", TEMPLATE, labelled, "app.kubernetes.io/managed-by=somebody", *flags)
    before = api.list(TEMPLATE, namespace)
    assert len(before) == 5
    assert prune.must(namespace) == {}
    assert api.list(TEMPLATE, namespace) == before


def test_a_pod_admitted_in_the_grace_period_keeps_its_template(api: Api, namespace: str, prune: Prune) -> None:
    name = unused(api, namespace)
    uid = api.get(TEMPLATE, name, namespace)["metadata"]["uid"]
    with waiting(prune, api, namespace, name):
        trial = api.create(pod("trial"), namespace, dry_run=True).body
        assert template_names(trial) == [name]
        assert mark_of(api, name, namespace), "a dry run takes no mark off"

        def kept() -> bool:
            # The webhook learns of the mark a moment after it was set; until then it relies on the template.
            api.delete("Pod", "in-the-grace", namespace, force=True)
            api.create(pod("in-the-grace"), namespace)
            return mark_of(api, name, namespace) is None

        eventually("the mark to be off", kept)
    assert api.get(TEMPLATE, name, namespace)["metadata"]["uid"] == uid


def test_the_next_run_continues_after_a_killed_run(api: Api, namespace: str, prune: Prune) -> None:
    name = unused(api, namespace)
    with waiting(prune, api, namespace, name) as child:
        child.kill()
        child.wait()
    assert generated_templates(api, namespace) == [name]
    assert prune.must(namespace) == {name: "removed"}


def test_a_missing_right_is_named_before_anything_is_changed(
    api: Api, namespace: str, control_plane: ControlPlane, prune: Prune
) -> None:
    nobody = Prune(control_plane.user_kubeconfig("prune-nobody"))
    code, _, stderr = nobody.run("prune", namespace)
    assert code == 2
    assert '"prune-nobody" lacks the rule - {apiGroups: [resource.k8s.io]' in stderr
    role = api.get("ClusterRole", "neuron-dra-prune")
    rules = [{**rule, "verbs": [verb for verb in rule["verbs"] if verb != "create"]} for rule in role["rules"]]
    api.merge("ClusterRole", "neuron-dra-prune", {"rules": rules})
    try:

        def refused() -> str:
            # RBAC takes a moment to reach the authorizer: until then it is pruned.
            name = unused(api, namespace)
            code, _, stderr = prune.run("prune", namespace, "--older-than=0s", "--grace=0s")
            assert code == 2, stderr
            assert "resources: [resourceclaimtemplates], verbs: [create]" in stderr
            return name

        name = eventually("the refusal", refused)
        assert mark_of(api, name, namespace) is None
    finally:
        api.merge("ClusterRole", "neuron-dra-prune", {"rules": role["rules"]})


def test_a_webhook_without_the_right_to_patch_reports_it(
    api: Api, namespace: str, kubectl: Kubectl, prune: Prune
) -> None:
    name = unused(api, namespace)
    role = api.get("ClusterRole", "neuron-dra")
    rules = [{**rule, "verbs": [verb for verb in rule["verbs"] if verb != "patch"]} for rule in role["rules"]]
    api.merge("ClusterRole", "neuron-dra", {"rules": rules})
    try:
        with waiting(prune, api, namespace, name):

            def refused() -> bool:
                result = kubectl.feed("create", pod("refused"))
                if result.ok:
                    kubectl.must("delete", "pod", "refused", "--force", "--grace-period=0")
                    kubectl.must("annotate", TEMPLATE, name, f"{MARK}=2030-01-01T00:00:00Z", "--overwrite")
                assert "NEU301" in result.stderr, result.stderr
                assert "is not allowed to patch resourceclaimtemplates" in result.stderr
                return True

            eventually("the refusal", refused)
    finally:
        api.merge("ClusterRole", "neuron-dra", {"rules": role["rules"]})
    eventually("the permission to be back", lambda: kubectl.feed("create", pod("refused")).ok)


def test_the_pod_of_the_cron_job_prunes_with_its_own_command_and_account(
    api: Api, namespace: str, control_plane: ControlPlane, prune: Prune
) -> None:
    """The chart's CronJob, its Job and pod made by the controllers; the pod's command runs here, as its account."""
    gone = unused(api, namespace)
    [kept] = template_names(api.create(pod("lives", container(neuron=1)), namespace).body)
    kubectl = control_plane.kubectl().within("neuron-dra")
    flags = ["--older-than=0s", "--grace=1s", "--output=json"]
    charted = find(render({"prune": {"enabled": True, "extraArgs": flags}}), "CronJob", "neuron-dra-prune")
    kubectl.must("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(charted))
    kubectl.must("create", "job", "now", "--from=cronjob/neuron-dra-prune")
    try:
        [made] = eventually(
            "the pod of the job",
            lambda: api.list("Pod", "neuron-dra", labelSelector="batch.kubernetes.io/job-name=now"),
        )
        spec = made["spec"]
        [run] = spec["containers"]
        token = kubectl.must("create", "token", spec["serviceAccountName"], "--duration=1h").stdout.strip()
        argv = [str(COMMAND.parent / run["command"][0]), *run["command"][1:], *run["args"]]
        kubeconfig = control_plane.token_kubeconfig("prune-job", token)
        done = subprocess.run(
            [*argv, f"--kubeconfig={kubeconfig}"], capture_output=True, text=True, timeout=90, check=False
        )
    finally:
        kubectl.must("delete", "job", "now", "--wait=false")
        kubectl.must("apply", "--server-side", "--force-conflicts", "-f", str(MANIFESTS / "prune.yaml"))
    assert done.returncode == 0, done.stderr + done.stdout
    # All namespaces, among them this one.
    removed = {each["name"] for each in json.loads(done.stdout)["templates"] if each["namespace"] == namespace}
    assert removed == {gone}
    assert generated_templates(api, namespace) == [kept]


class Users(Loop):
    """Users who create pods, wait for their claims and delete them, until they are stopped."""

    def __init__(self, api: Api, namespace: str) -> None:
        super().__init__(*(functools.partial(self._turn, devices, itertools.count(1)) for devices in (1, 4, 8)))
        self._api = api
        self._namespace = namespace
        self.problems: list[str] = []

    def _turn(self, devices: int, numbers: Iterator[int]) -> None:
        number = next(numbers)
        name = f"user-{devices}-{number}"
        try:
            self._api.create(pod(name, container(neuron=devices)), self._namespace)
            eventually(f"the claim of {name}", lambda: self._claimed(name))
            self._api.delete("Pod", name, self._namespace, force=True)
        except (AssertionError, TimeoutError) as error:
            self.problems.append(f"{name}: {error}")
        # Unused for a while that is sometimes shorter and sometimes longer than a prune.
        self.ending.wait((number * devices * 0.37) % 3)

    def _claimed(self, name: str) -> bool:
        status = self._api.get("Pod", name, self._namespace).get("status", {})
        return any(each.get("resourceClaimName") for each in status.get("resourceClaimStatuses", []))


def test_continuous_prunes_never_leave_a_pod_without_its_claim(api: Api, namespace: str, prune: Prune) -> None:
    outcomes: list[str] = []
    ends = time.monotonic() + 120
    with Users(api, namespace) as users:
        for number in itertools.count(1):
            outcomes += prune.must(namespace, grace="2s").values()
            # On a slow machine, users may always be faster than the grace period, or make few pods.
            if number >= 6 and (("removed" in outcomes and users.done > 10) or time.monotonic() > ends):
                break
    assert users.problems == []
    assert users.done > 10
    assert "removed" in outcomes
