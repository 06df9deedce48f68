"""A folder is loaded as one set of policies, or every problem in it is reported."""

import dataclasses
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from neuron.hardware.instances import Catalogue, Topology
from policies.files import folders
from policies.files.folders import PolicyError, read_folder
from policies.files.loader import load_folder
from policies.judging.rules import PolicySet
from tests.policies.policy_files import POD, loaded, policy, problems
from tests.policies.schema.test_kinds import CATALOG, CHECK, CONVERSION
from tests.support.timing import assert_below

VAP = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: replicas}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  validations: [{expression: "object.metadata.name != 'bad'"}]
"""
BINDING = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: bound}
spec: {policyName: replicas, validationActions: [Warn]}
"""


PARAMETERIZED = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: replicas}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  validations:
  - expression: object.metadata.name != params.data.name
    messageExpression: "'not ' + params.data.name"
"""
PARAM_BINDING = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: bound}
spec: {policyName: replicas, validationActions: [Deny], paramRef: {name: limits, parameterNotFoundAction: Deny}}
"""
PARAMETER = """
apiVersion: v1
kind: ConfigMap
metadata: {name: limits, namespace: team-a, labels: {team: a}}
data: {name: train}
"""


CONTRADICTIONS: dict[str, list[str]] = {
    "1.yaml:5: ValidatingPolicy 'limits' is already in 0.yaml:5; rename one.": [policy(CHECK), policy(CHECK)],
    "1.yaml:7: instance type trn9.48xlarge is already in 0.yaml:7; keep one.": [
        CATALOG + "  - {name: trn9.48xlarge, devices: 16}",
        CATALOG.replace("name: ", "name: other-", 1) + "  - {name: trn9.48xlarge, devices: 8}",
    ],
    "0.yaml:11: spec.paramKind needs a binding; use params of the ValidatingPolicy.": (
        [policy(f"{CHECK}\nparamKind: {{apiVersion: v1, kind: ConfigMap}}")]
    ),
    "1.yaml:5: spec.policyName is 'replica', but no file has a policy of that name. Did you mean 'replicas'?": (
        [VAP, BINDING.replace("policyName: replicas", "policyName: replica")]
    ),
    "1.yaml:5: spec.paramRef.name is 'limit', but no file has a ConfigMap of that name. Did you mean 'limits'?": (
        [PARAMETERIZED, PARAM_BINDING.replace("name: limits, p", "name: limit, p"), PARAMETER]
    ),
    "1.yaml:5: spec.paramRef.name is 'limits', but no file has a ConfigMap of that name. Every request would "
    "be denied.": [PARAMETERIZED, PARAM_BINDING],
    "1.yaml:5: spec.paramRef.name: set either name or selector.": (
        [PARAMETERIZED, PARAM_BINDING.replace("name: limits, p", "name: a, selector: {}, p")]
    ),
    "1.yaml:3: kind 'ConfigMap' is unknown. Known are ValidatingAdmissionPolicy, "
    "ValidatingAdmissionPolicyBinding, MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, "
    "ValidatingPolicy, MutatingPolicyTest, ConversionPolicy, SchedulingHintPolicy, ClaimTemplate, "
    "InstanceTypeCatalog "
    "(policy.neuron.aws.com/v1alpha1, admissionregistration.k8s.io/v1).": [VAP, PARAMETER],
    "0.yaml:11: spec.validationActions: has Deny and Warn, which repeat each other; keep one.": (
        [policy(f"{CHECK}\nvalidationActions: [Deny, Warn]")]
    ),
    "0.yaml:11: spec.validationActions: has an action twice: Warn, Warn.": (
        [policy(f"{CHECK}\nvalidationActions: [Warn, Warn]")]
    ),
    "0.yaml:6: spec: it has no validations and no auditAnnotations: the policy would do nothing.": (
        [policy("severity: low")]
    ),
    "0.yaml:7: spec.matchConstraints: resourceRules is missing.": (
        [policy(CHECK).replace("matchConstraints:\n    resourceRules:\n    - {", "matchConstraints: {}\n#")]
    ),
    "0.yaml:11: the variable 'a' is declared twice.": (
        [policy(f"{CHECK}\nvariables: [{{name: a, expression: '1'}}, {{name: a, expression: '2'}}]")]
    ),
    "0.yaml:10: spec.auditAnnotations[1].key: the audit annotation 'a' is declared twice; rename one.": (
        [policy("auditAnnotations: [{key: a, valueExpression: 'null'}, {key: a, valueExpression: 'null'}]")]
    ),
    "1.yaml:6: spec.order 10 is also the order of 'team-a'; the order must be unique.": (
        [CONVERSION, CONVERSION.replace("team-a}", "team-b}")]
    ),
    "0.yaml:8: spec.locked locks spec.mode, but spec.mode is missing.": (
        [CONVERSION.replace("  mode: convert", "  locked: true")]
    ),
    "0.yaml:9: spec.families[1] is 'trn22', but no instance type has this family. Did you mean 'trn2'?": (
        [CONVERSION.replace("[trn2]", "[trn1, trn22]")]
    ),
    "0.yaml:10: spec.logicalNeuronCore is 2; no instance type of trn1 supports it.": (
        [CONVERSION.replace("[trn2]", "[trn1]").replace("Core: 1", "Core: 2")]
    ),
    "0.yaml:7: instance type trn9.big: defaultLogicalNeuronCore 2 is not in logicalNeuronCores.": (
        [CATALOG + "  - {name: trn9.big, logicalNeuronCores: [1], defaultLogicalNeuronCore: 2}"]
    ),
    "0.yaml:7: instance type trn9.big: deviceGroups has 8, but the node has 4 devices.": (
        [CATALOG + "  - {name: trn9.big, devices: 4, deviceGroups: [8]}"]
    ),
    "0.yaml:7: instance type inf9.big: deviceGroups does not apply to topology ring, which gives any number of"
    " consecutive devices; write deviceGroups: [].": (
        [CATALOG + "  - {name: inf9.big, devices: 12, topology: ring, deviceGroups: [4]}"]
    ),
    "0.yaml:7: instance type trn2.48xlarge: deviceGroups does not apply to topology chain, which gives any"
    " number of consecutive devices; write deviceGroups: [].": [CATALOG + "  - {name: trn2.48xlarge, topology: chain}"],
}


@pytest.mark.parametrize(("message", "texts"), CONTRADICTIONS.items(), ids=CONTRADICTIONS)
def test_contradictions_within_and_between_files_are_rejected(texts: list[str], message: str) -> None:
    assert problems(*texts) == [message]


@pytest.mark.parametrize(
    ("spec", "start"),
    [
        pytest.param(
            "validations:\n- expression: |\n    true &&\n    objekt.kind == 'Pod'",
            "0.yaml:13: spec.validations[0].expression (column 1 of that line of the expression): ",
            id="expression-of-several-lines",
        ),
        pytest.param(
            'validations:\n- expression: "neuron.device > 4"',
            "0.yaml:11: spec.validations[0].expression (column 8 of that line of the expression): "
            "'neuron' has no field 'device'. Did you mean 'devices'?",
            id="neuron-field",
        ),
        pytest.param(
            "validations:\n- expression: \"variables.b > 4\"\nvariables:\n- {name: a, expression: '1'}",
            "0.yaml:11: spec.validations[0].expression (column 11 of that line of the expression): "
            "'variables' has no field 'b'.",
            id="variable",
        ),
        pytest.param(
            "validations:\n- expression: \"authorizer.group('').resource('pods').check(1).allowed()\"",
            "0.yaml:11: spec.validations[0].expression (column 39 of that line of the expression): 'check' does not "
            "take kubernetes.authorization.ResourceCheck.(int).",
            id="authorizer",
        ),
        *(
            pytest.param(
                f"validations:\n- expression: \"{clock} > timestamp('2030-01-01T00:00:00Z')\"",
                f"0.yaml:11: spec.validations[0].expression (column {column} of that line of the expression): "
                "CEL has no clock. A policy that holds at some times has spec.schedule; exceptions have schedule too.",
                id=clock,
            )
            for clock, column in (("time.now()", 6), ("now()", 1), ("now", 1), ("timestamp.now()", 11))
        ),
        pytest.param(
            "validations:\n- expression: variables.now\nvariables: [{name: b, expression: 'true'}]",
            "0.yaml:11: spec.validations[0].expression (column 11 of that line of the expression): "
            "'variables' has no field 'now'.",
            id="variable-now",
        ),
        pytest.param(
            'validations:\n- expression: "1"',
            "0.yaml:11: spec.validations[0].expression (column 1 of that line of the expression): "
            "the expression returns int, but must return bool.",
            id="no-bool",
        ),
        pytest.param(
            'validations:\n- expression: "true"\n  messageExpression: "1"',
            "0.yaml:12: spec.validations[0].messageExpression (column 1 of that line of the expression): ",
            id="message",
        ),
        pytest.param(
            f"{CHECK}\nmatchConditions: [{{name: a, expression: 'frob(object)'}}]",
            "0.yaml:11: spec.matchConditions[0].expression (column 1 of that line of the expression): ",
            id="unknown-function",
        ),
    ],
)
def test_faults_in_expressions_have_the_line_in_the_file(spec: str, start: str) -> None:
    (found,) = problems(policy(spec))
    assert found.startswith(start), found


def test_a_failing_case_refuses_the_set() -> None:
    tests = """
    validations: [{expression: 'neuron.devices < 4', message: too many}]
    tests:
    - name: four devices
      object: {apiVersion: v1, kind: Pod, spec: {containers: [
        {name: a, resources: {limits: {aws.amazon.com/neuron: 4}}}]}}
      expect: Allow
    """
    assert problems(policy(tests)) == ["0.yaml:15: test 'four devices' of limits: expected Allow, came Deny. too many"]


def test_a_conversion_case_with_another_match_is_reported() -> None:
    text = CONVERSION + "  tests:\n  - {name: other, object: {kind: Pod, apiVersion: v1}, expect: Match}\n"
    assert problems(text) == ["0.yaml:12: test 'other' of team-a: expected Match, came NoMatch."]


def test_policies_on_pods_are_sorted_by_their_order_field() -> None:
    later = CONVERSION.replace("order: 10", "order: 20").replace("team-a}", "later}")
    assert [rule.name for rule in loaded(later, CONVERSION).conversions] == ["team-a", "later"]


def test_a_binding_sets_the_actions_and_the_default_action_is_deny() -> None:
    (bound,) = loaded(VAP, BINDING).validating
    (unbound,) = loaded(VAP).validating
    assert [(each.name, each.actions) for each in bound.bindings] == [("bound", ("Warn",))]
    assert [(each.name, each.actions) for each in unbound.bindings] == [("", ("Deny",))]


def test_an_instance_type_is_added_with_its_counts() -> None:
    text = CATALOG + "  - {name: trn9.48xlarge, devices: 32, coresPerDevice: 4, deviceGroups: [16, 4], memoryGiB: 9}"
    made = loaded(text).catalogue.get("trn9.48xlarge")
    assert made is not None
    assert (made.family, made.counts, made.topology) == ("trn9", (1, 4, 16, 32), Topology.SWITCH)
    assert (made.cores_per_device, made.memory_gib, made.logical_neuron_cores) == (4, 9, (1,))


def test_only_the_fields_that_are_set_change_a_known_instance_type() -> None:
    before = Catalogue().get("trn2.48xlarge")
    after = loaded(CATALOG + "  - {name: trn2.48xlarge, deviceGroups: [4]}").catalogue.get("trn2.48xlarge")
    assert before is not None
    assert after is not None
    assert after.counts == (1, 4, 16)
    assert (after.cores_per_device, after.default_logical_neuron_core) == (before.cores_per_device, 2)


def test_a_folder_is_read_recursively_without_hidden_files(tmp_path: Path) -> None:
    for name in ("a.yaml", "sub/b.yml", "sub/c.json", ".hidden.yaml", ".git/d.yaml", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("# nothing")
    assert list(read_folder(tmp_path)) == [str(tmp_path / name) for name in ("a.yaml", "sub/b.yml", "sub/c.json")]
    assert load_folder(tmp_path).files == 3


def test_a_mounted_config_map_is_read_through_its_link(tmp_path: Path) -> None:
    generation = tmp_path / "..2026_01_01"
    generation.mkdir()
    (generation / "p.yaml").write_text(policy(CHECK))
    (tmp_path / "..data").symlink_to(generation.name)
    (tmp_path / "p.yaml").symlink_to("..data/p.yaml")
    assert list(read_folder(tmp_path)) == [str(tmp_path / "p.yaml")]
    assert [rule.name for rule in load_folder(tmp_path).validating] == ["limits"]


def test_the_digest_does_not_depend_on_the_folder_path() -> None:
    one, other = {"/a/p.yaml": b"x", "/a/b/q.yaml": b"y"}, {"c/d/p.yaml": b"x", "c/d/b/q.yaml": b"y"}
    assert folders.digest(one) == folders.digest(other)
    assert folders.digest(one) != folders.digest({"/a/p.yaml": b"x", "/a/c/q.yaml": b"y"})
    assert folders.digest({"/a/p.yaml": b"x"}) == folders.digest({"p.yaml": b"x"})
    assert folders.digest({}) == folders.digest({})


def test_the_digest_follows_content_and_names() -> None:
    digests = {
        loaded(policy(CHECK)).digest,
        loaded(policy(CHECK), "").digest,
        loaded(policy("severity: low\n" + CHECK)).digest,
    }
    assert len(digests) == 3
    assert PolicySet().digest == ""


def test_a_missing_folder_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"none: this is not a directory. Give the folder of the policy files."):
        read_folder(tmp_path / "none")


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").symlink_to("nowhere")
    with pytest.raises(PolicyError, match=r"a.yaml: this cannot be read: No such file or directory."):
        read_folder(tmp_path)


def test_a_huge_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").touch()
    os.truncate(tmp_path / "a.yaml", (1 << 20) + 1)
    with pytest.raises(PolicyError, match=r"a.yaml:1: the file is larger than 1048576 bytes; split it."):
        read_folder(tmp_path)


def test_the_pod_of_these_tests_asks_for_four_devices() -> None:
    assert POD["spec"]["containers"][0]["resources"]["limits"] == {"aws.amazon.com/neuron": "4"}


# --- what may lie in a folder ------------------------------------------------------------------------------------

GOOD = policy("validations: [{expression: 'true'}]")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def _grown(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        pytest.param(os.mkfifo, "this cannot be read: it is not a regular file.", id="fifo"),
        pytest.param(_socket, "this cannot be read: it is not a regular file.", id="socket"),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), "it is not a regular file.", id="device"),
        pytest.param(lambda path: path.symlink_to(path), "this cannot be read: Too many levels of symb", id="loop"),
        pytest.param(lambda path: path.symlink_to("gone"), "this cannot be read: No such file or direc", id="dangling"),
        pytest.param(_grown, "the file is larger than 1048576 bytes; split it.", id="huge"),
        pytest.param(lambda path: path.write_bytes(b"\xff" * 9), "the file is not UTF-8: ", id="bytes"),
        pytest.param(lambda path: path.write_bytes(b"[" * 30_000), "values are nested deeper than 100", id="deep"),
    ],
)
def test_files_that_could_block_the_reader_are_not_opened(
    make: Callable[[Path], None], why: str, tmp_path: Path
) -> None:
    (tmp_path / "good.yaml").write_text(GOOD)
    make(tmp_path / "odd.yaml")
    started = time.monotonic()
    with pytest.raises(PolicyError) as caught:
        load_folder(tmp_path)
    assert [why in str(problem) for problem in caught.value.problems] == [True]
    assert_below(time.monotonic() - started, 5)


def test_the_files_and_bytes_of_a_folder_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in range(4):
        (tmp_path / f"{at}.yaml").write_text(GOOD.replace("limits", f"p{at}"))
    assert load_folder(tmp_path).files == 4
    for bound in ({"files": 3}, {"folder": 300}, {"entries": 3}):
        with monkeypatch.context() as patched:
            patched.setattr(folders, "BOUNDS", dataclasses.replace(folders.BOUNDS, **bound))
            with pytest.raises(PolicyError, match="a folder of policies has at most"):
                load_folder(tmp_path)


def test_file_names_that_are_not_utf_8_are_escaped(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.yaml")).write_text("kind: Frog")
    with pytest.raises(PolicyError) as caught:
        load_folder(tmp_path)
    assert str(caught.value).isascii()
    assert "\\xff.yaml" in str(caught.value)


def test_long_values_are_cut_in_messages() -> None:
    told = problems(f"apiVersion: policy.neuron.aws.com/v1alpha1\nkind: {'x' * 100_000}")
    assert max(map(len, told)) < 500


OLDER = VAP.replace("k8s.io/v1", "k8s.io/v1beta1")


def test_older_api_versions_are_read_as_v1_with_one_note() -> None:
    found = loaded(OLDER, BINDING.replace("k8s.io/v1", "k8s.io/v1alpha1"), VAP.replace("replicas", "other"))
    assert [rule.name for rule in found.validating] == ["replicas", "other"]
    (note,) = found.notes
    assert note.startswith("0.yaml, 1.yaml: read as admissionregistration.k8s.io/v1; the API server no longer serves")
    assert loaded(VAP).notes == ()


def test_a_variable_may_be_declared_twice_as_in_the_api_server() -> None:
    variables = "  variables: [{name: a, expression: \"'x'\"}, {name: a, expression: \"'bad'\"}]\n"
    (rule,) = loaded(VAP.replace("  validations", f"{variables}  validations")).validating
    assert rule.variables["a"].source == "'bad'"
