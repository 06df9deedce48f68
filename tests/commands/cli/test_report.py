"""`neuron-dra report`: files and clusters in, exit codes, and what cannot be read."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from tests.commands.report.test_render import Page
from tests.commands.report.test_shadow import line
from tests.policies.policy_files import policy
from tests.support.emulated import EmulatedCluster
from tests.support.fake_api import FakeApi
from tests.support.invoking import invoke, printed
from tests.support.reports import deployment, owned, running
from tests.support.timing import assert_below
from tests.support.trainium import ENVIRONMENT

KINDS = [
    ("apps", "v1", "Deployment", "deployments", True),
    ("apps", "v1", "ReplicaSet", "replicasets", True),
    ("batch", "v1", "Job", "jobs", True),
    ("openreports.io", "v1alpha1", "Report", "reports", True),
    ("openreports.io", "v1alpha1", "ClusterReport", "clusterreports", False),
]
DEPLOYMENT = """\
apiVersion: v1
kind: Namespace
metadata: {name: team-a}
---
# A comment
apiVersion: apps/v1
kind: Deployment
metadata:
  name: train
  namespace: team-a
spec:
  replicas: 2
  template:
    spec:
      nodeSelector: {node.kubernetes.io/instance-type: trn1.32xlarge}
      containers:
      - name: main
        resources:
          limits:
            aws.amazon.com/neuron: 7
"""


def run_report(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
    return invoke("report", *arguments, stdin=stdin, environment={**ENVIRONMENT, "KUBECONFIG": "/nowhere"})


class TestFiles:
    def test_files_give_a_text_report_and_an_exit_code(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text(DEPLOYMENT)
        result = run_report("-f", tmp_path)
        assert result.exit_code == 1
        assert "1 workload with 2 pods: 1 is refused." in result.stdout
        assert run_report("-f", "-", stdin=DEPLOYMENT.replace("7", "8")).exit_code == 0

    def test_an_object_that_is_left_out_is_an_error(self) -> None:
        left_out = run_report("-f", "-", stdin=DEPLOYMENT.replace("  name: train", "  name: train\n  labels: [a]"))
        assert "Not complete" in left_out.stdout
        assert left_out.exit_code == 2

    @pytest.mark.parametrize("suffix", ["yaml", "json"])
    def test_a_fact_of_a_wrong_form_is_an_error(self, tmp_path: Path, suffix: str) -> None:
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": ["pods"]}}
        (tmp_path / f"a.{suffix}").write_text(json.dumps(quota) if suffix == "json" else yaml.safe_dump(quota))
        result = run_report("-f", tmp_path)
        assert "spec.hard: ResourceQuota q cannot be read" in " ".join(result.stdout.split())
        assert result.exit_code == 2

    def test_a_number_of_pods_that_is_none_leaves_nothing_out(self) -> None:
        result = run_report("-f", "-", "-o", "json", stdin=DEPLOYMENT.replace("replicas: 2", "replicas: many"))
        assert [each["code"] for each in printed(result)["workloads"][0]["obstacles"]] == ["NEU105"]

    @pytest.mark.parametrize("output", ["html", "markdown", "json", "sarif"])
    def test_every_output_format_is_written(self, output: str) -> None:
        result = run_report("-f", "-", "-o", output, stdin=DEPLOYMENT)
        assert result.exit_code == 1
        assert "NEU105" in result.stdout

    def test_sarif_has_the_line_of_the_field(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text(DEPLOYMENT)
        [found] = printed(run_report("-f", tmp_path, "-o", "sarif"))["runs"][0]["results"]
        physical = found["locations"][0]["physicalLocation"]
        assert physical["region"]["startLine"] == 1 + DEPLOYMENT.splitlines().index(
            "            aws.amazon.com/neuron: 7"
        )

    def test_json_has_the_line_of_the_object(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text(DEPLOYMENT)
        [found] = printed(run_report("-f", tmp_path, "-o", "json"))["workloads"]
        assert (found["file"], found["line"]) == (str(tmp_path / "a.yaml"), 6)

    @pytest.mark.parametrize("kind", ["List", "DeploymentList"])
    def test_lists_as_kubectl_prints_them(self, kind: str) -> None:
        items = [deployment("a"), deployment("b")]
        version = "v1"
        if kind != "List":
            version = "apps/v1"
            for item in items:
                del item["kind"], item["apiVersion"]
        text = json.dumps({"apiVersion": version, "kind": kind, "items": items, "metadata": {"resourceVersion": ""}})
        found = printed(run_report("-f", "-", "-o", "json", stdin=text))["workloads"]
        assert [(each["kind"], each["name"]) for each in found] == [("Deployment", "a"), ("Deployment", "b")]

    def test_json_is_read_like_yaml(self) -> None:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [deployment("a"), running("b")]})
        fast = printed(run_report("-f", "-", "-o", "json", stdin=text))
        slow = printed(run_report("-f", "-", "-o", "json", stdin=f"# YAML\n{text}"))
        for found in (fast, slow):
            for each in found["workloads"]:
                each.pop("line")
            found.pop("made")
        assert fast == slow

    def test_several_json_objects_in_one_file(self) -> None:
        text = json.dumps(deployment("a")) + "\n" + json.dumps(deployment("b"))
        assert len(printed(run_report("-f", "-", "-o", "json", stdin=text))["workloads"]) == 2

    def test_namespace_annotations_in_other_files_apply(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text(DEPLOYMENT.partition("---\n")[2])
        namespace = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "team-a"}}
        namespace["metadata"] |= {"annotations": {"neuron.aws.com/convert": "off"}}  # type: ignore[operator]
        (tmp_path / "b.json").write_text(json.dumps(namespace))
        [found] = printed(run_report("-f", tmp_path, "-o", "json"))["workloads"]
        assert found["fate"] == "stays"

    def test_the_objects_in_an_app_wrapper_are_workloads_of_its_namespace(self) -> None:
        inner = deployment("inner")
        del inner["metadata"]["namespace"]
        wrapper = {
            "apiVersion": "workload.codeflare.dev/v1beta2",
            "kind": "AppWrapper",
            "metadata": {"name": "outer", "namespace": "team-b"},
            "spec": {"components": [{"template": inner}]},
        }
        [found] = printed(run_report("-f", "-", "-o", "json", stdin=json.dumps(wrapper)))["workloads"]
        assert (found["kind"], found["namespace"], found["name"]) == ("Deployment", "team-b", "inner")

    def test_unreadable_files_are_reported(self, tmp_path: Path) -> None:
        (tmp_path / "good.yaml").write_text(DEPLOYMENT)
        (tmp_path / "bad.yaml").write_text("a: [")
        result = run_report("-f", tmp_path, "-f", tmp_path / "missing.yaml")
        assert result.exit_code == 2
        assert "bad.yaml:1:" in result.stderr
        assert "missing.yaml: No such file or directory." in result.stderr
        assert "1 workload" in result.stdout

    def test_policies_are_audited(self, tmp_path: Path) -> None:
        (tmp_path / "few.yaml").write_text(policy('validations: [{expression: "neuron.devices <= 2"}]'))
        result = run_report("-f", "-", "-o", "json", "--policies", tmp_path, stdin=DEPLOYMENT.replace("7", "4"))
        assert printed(result)["audit"]["summary"]["fail"] == 1
        assert result.exit_code == 1

    def test_several_clusters_need_names_and_files_are_one(self) -> None:
        for arguments, message in (
            (("--cluster", "east"), "'east' is not NAME=PATH, such as east=dumps/east.json"),
            (("--cluster", "east=x", "--context", "east"), "Two clusters are named east"),
            (("--cluster", "east=x", "-f", "y"), "files of one cluster: give each of several as --cluster"),
            (("--cluster", "east=x", "-n", "team-a"), "-f, -k and --cluster read files; --kubeconfig"),
        ):
            result = run_report(*arguments)
            assert (result.exit_code, message in result.stderr) == (2, True), result.stderr

    def test_files_and_a_cluster_exclude_each_other(self) -> None:
        for option in ("--kubeconfig=x", "--context=x", "--namespace=x", "--write-policy-reports"):
            result = run_report("-f", "-", option, stdin="")
            assert (result.exit_code, "-f, -k and --cluster read files" in result.stderr) == (2, True)

    def test_writing_needs_policies(self, tmp_path: Path) -> None:
        assert "needs --policies" in run_report("--write-policy-reports", "--kubeconfig", tmp_path / "x").stderr


class TestSeveral:
    @pytest.fixture
    def dumps(self, tmp_path: Path) -> list[str]:
        """East has a workload that is refused, west one that converts; there is no file of north."""
        (tmp_path / "east.yaml").write_text(DEPLOYMENT)
        (tmp_path / "west").mkdir()
        (tmp_path / "west" / "a.yaml").write_text(DEPLOYMENT.partition("---\n")[2].replace("7", "8"))
        paths = {"east": "east.yaml", "west": "west", "north": "north.yaml"}
        return [f"--cluster={name}={tmp_path / path}" for name, path in paths.items()]

    def test_text_has_a_table_of_clusters_and_then_each(self, dumps: list[str]) -> None:
        result = run_report(*dumps)
        assert result.exit_code == 2, "north cannot be read"
        first, second = result.stdout.index("Neuron workloads of 3 clusters"), result.stdout.index("\nClusters\n")
        parts = [result.stdout.index(f"\nNeuron workloads of {name} (") for name in ("east", "west", "north")]
        assert [first, second, *parts] == sorted([first, second, *parts])
        rows = {line.split()[0]: line.split()[1:7] for line in result.stdout[second : parts[0]].splitlines() if line}
        assert rows["east"] == ["1", "0", "0", "0", "1", "0"]
        assert rows["west"] == ["1", "0", "1", "0", "0", "0"]
        assert rows["north"] == ["-"] * 6
        assert rows["all"] == ["2", "0", "1", "0", "1", "0"]
        assert "north.yaml: No such file or directory." in " ".join(result.stdout[second : parts[0]].split())

    def test_the_exit_code_is_that_of_the_worst_cluster(self, dumps: list[str]) -> None:
        east, west, _ = dumps
        assert run_report(east, west).exit_code == 1
        assert run_report(west, west.replace("west=", "copy=")).exit_code == 0

    def test_files_of_one_name_are_one_cluster(self, dumps: list[str], tmp_path: Path) -> None:
        namespace = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "team-a"}}
        namespace["metadata"] |= {"annotations": {"neuron.aws.com/convert": "off"}}  # type: ignore[operator]
        (tmp_path / "more.json").write_text(json.dumps(namespace))
        found = printed(run_report(*dumps[:2], f"--cluster=west={tmp_path / 'more.json'}", "-o", "json"))["clusters"]
        assert [(each["cluster"], each["workloads"][0]["fate"]) for each in found] == [
            ("east", "refused"),
            ("west", "stays"),
        ]

    def test_json_has_a_list_only_of_several(self, dumps: list[str], tmp_path: Path) -> None:
        several = printed(run_report(*dumps, "-o", "json"))
        assert [*several] == ["clusters"]
        assert [each["cluster"] for each in several["clusters"]] == ["east", "west", "north"]
        assert [len(each["problems"]) for each in several["clusters"]] == [0, 0, 1]
        alone = printed(run_report(dumps[0], "-o", "json"))
        assert alone | {"made": ""} == printed(run_report("-f", tmp_path / "east.yaml", "-o", "json")) | {"made": ""}
        [of_east, *_] = several["clusters"]
        assert {key: of_east[key] for key in alone if key not in ("made", "origin")} == {
            key: alone[key] for key in alone if key not in ("made", "origin")
        }

    def test_a_page_has_each_id_once_and_one_menu(self, dumps: list[str]) -> None:
        page = Page(run_report(*dumps, "-o", "html").stdout)
        ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
        assert len(ids) == len(set(ids))
        targets = {str(attributes["href"])[1:] for tag, attributes in page.elements if tag == "a"}
        assert targets <= {*ids}
        assert {"clusters", "cluster-1", "cluster-1-blocks", "cluster-2-workloads", "cluster-3", "codes"} <= {*ids}
        assert [tag for tag, _ in page.elements if tag in ("h1", "h2")] == ["h1", *["h2"] * 5], "clusters, 3, codes"

    def test_markdown_is_one_document(self, dumps: list[str]) -> None:
        lines = run_report(*dumps, "-o", "markdown").stdout.splitlines()
        assert [line for line in lines if line.startswith("# ")] == ["# Neuron workloads of 3 clusters"]
        parts = [line.split()[4] for line in lines if line.startswith("## Neuron workloads of ")]
        assert parts == ["east", "west", "north"]

    def test_sarif_has_a_run_for_each(self, dumps: list[str]) -> None:
        log = printed(run_report(*dumps, "-o", "sarif"))
        assert [(each["automationDetails"]["id"], len(each["results"])) for each in log["runs"]] == [
            ("east/", 1),
            ("west/", 0),
            ("north/", 0),
        ]

    def test_names_of_clusters_are_no_markup(self, dumps: list[str]) -> None:
        hostile = [each.replace("=west=", "=<script>|=", 1) for each in dumps]
        assert "<script>|" not in run_report(*hostile, "-o", "html").stdout
        assert "<script>|" not in run_report(*hostile, "-o", "markdown").stdout


class TestCluster:
    @pytest.fixture
    async def api(self) -> AsyncIterator[FakeApi]:
        async with FakeApi().serve() as api:
            api.kinds = KINDS
            yield api

    async def run(self, api: FakeApi, tmp_path: Path, *arguments: str | Path) -> Result:
        return await asyncio.to_thread(run_report, "--kubeconfig", api.kubeconfig(tmp_path), *arguments)

    def fill(self, api: FakeApi) -> None:
        """Two nodes of the device plugin, one of the driver; a Deployment with two pods, and one of another kind."""
        cluster = EmulatedCluster()
        allocatable = {"aws.amazon.com/neuron": "16"}
        cluster.node("node-1", "trn1.32xlarge", driver=False, allocatable=allocatable)
        cluster.node("node-2", "trn1.32xlarge", driver=False, allocatable=allocatable)
        cluster.node("node-3", "trn1.32xlarge")
        cluster.claim("held", "node-3", range(4))
        cluster.put_into(api)
        api.remove("pods", "held", "team-a")
        top = deployment("train", replicas=2)
        api.put("deployments", top)
        middle = owned({**deployment("train-5d8f", uid="uid-rs"), "kind": "ReplicaSet"}, top)
        api.put("replicasets", middle)
        for at in range(2):
            api.put("pods", owned(running(f"train-5d8f-{at}"), middle))
        trainer = {"apiVersion": "acme.example/v1", "kind": "Trainer", "metadata": {"name": "big", "uid": "uid-big"}}
        api.put("pods", owned(running("big-0", "node-2", namespace="team-b", count=7), trainer))

    async def test_a_cluster_gives_a_report(self, api: FakeApi, tmp_path: Path) -> None:
        self.fill(api)
        result = await self.run(api, tmp_path, "-o", "json")
        assert result.exit_code == 1, result.stderr
        found = printed(result)
        assert found["nodes"] == {
            "plugin": {"node-1": 16, "node-2": 16},
            "driver": {"node-3": 16},
            "freeDevices": 12,
            "freeByType": {"trn1.32xlarge": 12},
            "idle": [],
            "mixed": [],
        }
        assert [(each["kind"], each["name"], each["fate"], each["pods"]) for each in found["workloads"]] == [
            ("Deployment", "train", "converts", 2),
            ("Trainer", "big", "refused", 1),
        ]
        assert found["workloads"][0]["podTemplates"][0]["instanceTypes"] == ["trn1.32xlarge"]
        assert [(each["namespace"], each["freesNodes"], each["freeBefore"]) for each in found["steps"]] == [
            ("team-a", ["node-1"], 12),
            ("team-b", [], 20),
        ]

    async def test_several_contexts_make_one_report(self, api: FakeApi, tmp_path: Path) -> None:
        """East has the workloads; west refuses the list of slices; north has no server; south is no context."""
        self.fill(api)
        async with FakeApi().serve() as west:
            west.kinds = KINDS
            west.forbid("list", "resourceslices", "resource.k8s.io")
            urls = {"east": api.url, "west": west.url, "north": "http://127.0.0.1:1"}
            config = {
                "contexts": [{"name": name, "context": {"cluster": name, "user": "u"}} for name in urls],
                "clusters": [{"name": name, "cluster": {"server": url}} for name, url in urls.items()],
                "users": [{"name": "u", "user": {}}],
            }
            (tmp_path / "several").write_text(json.dumps(config))
            (tmp_path / "dump.yaml").write_text(DEPLOYMENT)
            contexts = [f"--context={name}" for name in (*urls, "south")]
            options = ("--kubeconfig", tmp_path / "several", *contexts, f"--cluster=dump={tmp_path / 'dump.yaml'}")
            shown = await asyncio.to_thread(run_report, *options, "-o", "json")
            text = await asyncio.to_thread(run_report, *options)
        assert (shown.exit_code, text.exit_code) == (2, 2)
        found = {each["cluster"]: each for each in printed(shown)["clusters"]}
        assert [*found] == ["east", "west", "north", "south", "dump"]
        assert (found["east"]["origin"], found["east"]["problems"]) == (f"east ({api.url})", [])
        assert [each["name"] for each in found["east"]["workloads"]] == ["train", "big"]
        assert found["east"]["nodes"]["freeDevices"] == 12
        for name, why in (
            ("west", f"the cluster at {west.url} cannot be used: not allowed to list resourceslices"),
            ("north", "cannot connect to http://127.0.0.1:1"),
            ("south", "has no context 'south'"),
        ):
            [problem] = found[name]["problems"]
            assert why in problem["problem"]
            assert found[name]["workloads"] == []
        rows = {line.split()[0]: line.split()[1:7] for line in text.stdout.splitlines() if line.startswith("  ")}
        assert (rows["east"], rows["all"]) == (["2", "0", "1", "0", "1", "0"], ["3", "0", "1", "0", "2", "0"])
        assert [rows[name] for name in ("west", "north", "south")] == [["-"] * 6] * 3
        assert "driver devices: 16; free: 12" in " ".join(text.stdout.split())

    @pytest.mark.parametrize(
        ("classes", "instance_type", "codes"),
        [
            ("neuron.aws.com", "trn1.32xlarge", []),
            ("gpu.example.com", "trn1.32xlarge", ["NEU232"]),
            ("neuron.aws.com", "inf2.48xlarge", ["NEU232"]),
        ],
        ids=["mapped", "not-mapped", "alternatives"],
    )
    async def test_the_configuration_of_kueue_decides_whether_claims_are_counted(
        self, api: FakeApi, tmp_path: Path, classes: str, instance_type: str, codes: list[str]
    ) -> None:
        api.kinds = [*KINDS, ("kueue.x-k8s.io", "v1beta2", "LocalQueue", "localqueues", True)]
        EmulatedCluster().put_into(api)
        train = deployment("train", replicas=2, nodeSelector={"node.kubernetes.io/instance-type": instance_type})
        train["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "training"}
        api.put("deployments", train)
        mapping = f"resources: {{deviceClassMappings: [{{name: q/neuron, deviceClassNames: [{classes}]}}]}}"
        metadata = {"name": "kueue-manager-config", "namespace": "kueue-system"}
        api.put("configmaps", {"metadata": metadata, "data": {"controller_manager_config.yaml": mapping}})
        found = printed(await self.run(api, tmp_path, "-o", "json"))
        (workload,) = found["workloads"]
        assert [each["code"] for each in workload["obstacles"] if each["code"] == "NEU232"] == codes
        told = [each for each in found["notes"] if each.startswith("Kueue has no mapping for neuron.aws.com: ")]
        assert bool(told) is (classes != "neuron.aws.com")

    async def test_one_namespace_of_a_cluster_gives_a_report(self, api: FakeApi, tmp_path: Path) -> None:
        self.fill(api)
        found = printed(await self.run(api, tmp_path, "-n", "team-b", "-o", "json"))
        assert [each["name"] for each in found["workloads"]] == ["big"]
        assert found["origin"].endswith(" in namespace team-b")

    async def test_long_lists_are_read_page_by_page(self, api: FakeApi, tmp_path: Path) -> None:
        for at in range(1100):
            api.put("deployments", deployment(f"train-{at:04}"))
        assert len(printed(await self.run(api, tmp_path, "-o", "json"))["workloads"]) == 1100
        assert len(api.calls("continue", "deployments")) == 2

    async def test_a_list_that_expires_begins_again_without_counting_twice(self, api: FakeApi, tmp_path: Path) -> None:
        from tests.support.fake_api import answer

        for at in range(600):
            api.put("pods", running(f"train-{at:04}"))
        api.fault("continue", "pods", answer(410, "Expired", "the continue parameter is too old"))
        assert len(printed(await self.run(api, tmp_path, "-o", "json"))["workloads"]) == 600

    async def test_logs_and_events_of_the_webhook_are_read(self, api: FakeApi, tmp_path: Path) -> None:
        self.fill(api)
        labels = {"app.kubernetes.io/name": "neuron-dra", "app.kubernetes.io/component": "webhook"}
        api.put("pods", {"metadata": {"name": "neuron-dra-0", "namespace": "neuron-dra", "labels": labels}, "spec": {}})
        api.logs["neuron-dra", "neuron-dra-0"] = (line() + b"\n" + line()).decode()
        event = {"metadata": {"name": "e", "namespace": "team-a"}, "note": "NEU105: seven"}
        api.put("events", {**event, "regarding": {"kind": "ReplicaSet", "name": "old"}})
        found = printed(await self.run(api, tmp_path, "-o", "json"))["shadow"]
        assert [(each["pods"], each["outcome"], each["count"]) for each in found] == [
            ("Deployment train", "would-be-converted", 2),
            ("ReplicaSet old", "denied", 1),
        ]
        [seen] = api.calls("list", "events")
        assert seen.query["fieldSelector"] == ("reason=ConversionRefused,reportingController=neuron.aws.com/webhook")
        without = await self.run(api, tmp_path, "-o", "json", "--no-webhook-records")
        assert printed(without)["shadow"] == []

    async def test_a_missing_permission_is_reported_with_the_rule(self, api: FakeApi, tmp_path: Path) -> None:
        self.fill(api)
        api.forbid("list", "deployments", "apps")
        api.forbid("list", "events", "events.k8s.io")
        result = await self.run(api, tmp_path)
        assert result.exit_code == 2
        told = " ".join(result.stdout.split())
        assert "you are not allowed to list deployments.apps." in told
        assert "{apiGroups: [apps], resources: [deployments], verbs: [list]}" in told
        assert "records of the webhook: you are not allowed to list events.events.k8s.io." in told

    async def test_a_cluster_that_does_not_answer(self, tmp_path: Path) -> None:
        async with FakeApi().serve() as gone:
            path = gone.kubeconfig(tmp_path)
        started = time.monotonic()
        result = await asyncio.to_thread(run_report, "--kubeconfig", path)
        assert result.exit_code == 2
        assert result.stderr.startswith("Error: cannot connect to")
        assert_below(time.monotonic() - started, 15, "the caches of the webhook would retry for 30 s")

    async def test_results_of_policies_are_written(self, api: FakeApi, tmp_path: Path) -> None:
        self.fill(api)
        folder = tmp_path / "policies"
        folder.mkdir()
        (folder / "few.yaml").write_text(policy('validations: [{expression: "neuron.devices <= 2", message: few}]'))
        result = await self.run(api, tmp_path, "--policies", folder, "--write-policy-reports")
        assert "Report objects of openreports.io/v1alpha1: 2 created" in result.stderr
        stored = api.get("reports", "neuron-dra", "team-a")
        assert [each["resources"][0]["name"] for each in stored["results"]] == ["train"]
        api.forbid("update", "reports", "openreports.io")
        (folder / "few.yaml").write_text(policy('validations: [{expression: "neuron.devices <= 2", message: fewer}]'))
        result = await self.run(api, tmp_path, "--policies", folder, "--write-policy-reports")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "verbs: [update]" in result.stderr
