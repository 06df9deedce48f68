"""Valid and invalid policy files, and the error messages."""

import jsonschema
import pytest
import yaml

from policies.schema.kinds import KINDS, json_schema
from tests.policies.policy_files import loaded, policy, problems

CONVERSION = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ConversionPolicy
metadata: {name: team-a}
spec:
  order: 10
  match: {namespaces: [team-a]}
  mode: convert
  families: [trn2]
  logicalNeuronCore: 1
"""
CATALOG = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: InstanceTypeCatalog
metadata: {name: new}
spec:
  instanceTypes:
"""
CHECK = "validations: [{expression: 'true'}]"


WRONG: dict[str, str] = {
    "0.yaml:1: a policy is a mapping of fields, not a list.": "- a",
    "0.yaml:1: kind 'ValidatingPolicies' is unknown. Did you mean 'ValidatingPolicy'?": (
        "kind: ValidatingPolicies\napiVersion: policy.neuron.aws.com/v1alpha1"
    ),
    "0.yaml:2: kind 'Frog' is unknown. Known are ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, "
    "MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, ValidatingPolicy, MutatingPolicyTest, "
    "ConversionPolicy, SchedulingHintPolicy, ClaimTemplate, InstanceTypeCatalog "
    "(policy.neuron.aws.com/v1alpha1, admissionregistration.k8s.io/v1).": "apiVersion: v1\nkind: Frog",
    "0.yaml:1: ValidatingAdmissionPolicy has apiVersion admissionregistration.k8s.io/v1, not "
    "'admissionregistration.k8s.io/v2'.": (
        "apiVersion: admissionregistration.k8s.io/v2\nkind: ValidatingAdmissionPolicy"
    ),
    "0.yaml:10: spec.validation: unknown field. Did you mean 'validations'?": policy("validation: []"),
    "0.yaml:11: spec.validations[0].reason is 'Unauthorized': this must be one of Forbidden, Invalid, "
    "RequestEntityTooLarge.": policy("validations:\n- {expression: 'true', reason: Unauthorized}"),
    "0.yaml:11: spec.validations[0].expresion: unknown field. Did you mean 'expression'?": policy(
        "validations:\n- expresion: 'true'\n  expression: 'true'"
    ),
    "0.yaml:11: spec.failurePolicy is 'Fails': this must be one of Fail, Ignore. Did you mean 'Fail'?": policy(
        f"{CHECK}\nfailurePolicy: Fails"
    ),
    "0.yaml:11: spec.validations[0].expression: the field is missing.": policy("validations:\n- message: wrong"),
    "0.yaml:11: spec.validations[0].expression is 5: this must be text.": policy("validations:\n- expression: 5"),
    "0.yaml:10: spec.validations: this must be a list.": policy("validations: {}"),
    "0.yaml:11: spec.params is 3: this must be a mapping.": policy(f"{CHECK}\nparams: 3"),
    "0.yaml:11: spec.validations[0].expression is '': this must not be empty.": policy(
        "validations:\n- expression: ''"
    ),
    "0.yaml:5: metadata.name is 'Big': string should match pattern ": policy(CHECK, name="Big"),
    "0.yaml:6: spec.order is 'ten': this must be a whole number.": CONVERSION.replace("order: 10", "order: ten"),
    "0.yaml:11: spec.locked is 1: this must be true or false.": CONVERSION + "  locked: 1",
    "0.yaml:8: spec.mode is true: this must be one of convert, convert-if-enriched, shadow, off. YAML reads y,": (
        CONVERSION.replace("mode: convert", "mode: on")
    ),
    "0.yaml:10: spec.logicalNeuronCore is '1': this must be one of 1, 2. Leave out the quotes.": CONVERSION.replace(
        "Core: 1", "Core: '1'"
    ),
    "0.yaml:6: spec.instanceTypes: the field is missing.": CATALOG,
    "0.yaml:6: spec.instanceTypes: this must not be empty.": CATALOG + "    []",
    "0.yaml:7: spec.instanceTypes[0].topology is 'cube': this must be one of single, ring, chain, torus,"
    " switch.": CATALOG + "  - {name: trn9.big, topology: cube}",
}


@pytest.mark.parametrize(("message", "text"), WRONG.items(), ids=WRONG)
def test_an_error_has_file_line_value_and_fix(text: str, message: str) -> None:
    found = problems(text)
    assert len(found) == 1, found
    assert found[0].startswith(message)


def test_mode_off_is_accepted_although_yaml_reads_it_as_false() -> None:
    (rule,) = loaded(CONVERSION.replace("mode: convert", "mode: off")).conversions
    assert rule.spec.mode == "off"


def test_all_errors_of_all_files_are_reported_together() -> None:
    found = problems(policy("a: 1\nb: 2"), "kind: Frog")
    assert [line.split(": ")[0] for line in found] == ["0.yaml:10", "0.yaml:11", "1.yaml:1"]


def test_metadata_set_by_the_server_is_accepted() -> None:
    exported = policy(CHECK).replace("  name: limits", "  name: limits\n  uid: x\n  managedFields: []\n  generation: 2")
    assert loaded(exported).files == 1


@pytest.mark.parametrize("text", ["expires: 2026-12-31", "expires: '2026-12-31T23:59:59Z'"])
def test_a_date_lasts_until_its_end_in_utc(text: str) -> None:
    exception = (
        f"exceptions: [{{name: a, owner: b, reason: c, {text}, matchConditions: [{{name: d, expression: 'true'}}]}}]"
    )
    (rule,) = loaded(policy(f"{CHECK}\n{exception}")).validating
    assert rule.exemptions[0].expires.isoformat() == "2026-12-31T23:59:59+00:00"


def test_a_time_needs_a_zone() -> None:
    exception = (
        "exceptions: [{name: a, owner: b, reason: c, expires: '2026-12-31T10:00:00', "
        "matchConditions: [{name: d, expression: 'true'}]}]"
    )
    (found,) = problems(policy(f"{CHECK}\n{exception}"))
    assert found.startswith("0.yaml:11: spec.exceptions[0].expires is '2026-12-31T10:00:00': the time needs a zone")


@pytest.mark.parametrize("text", [policy(CHECK), CONVERSION, CATALOG + "  - {name: trn9.big, memoryGiB: 3}"])
def test_the_schemas_accept_what_the_models_accept(text: str) -> None:
    data = yaml.safe_load(text)
    validator = jsonschema.Draft202012Validator(json_schema(KINDS[data["apiVersion"], data["kind"]]))
    assert loaded(text).files == 1
    assert list(validator.iter_errors(data)) == []
    assert list(validator.iter_errors({**data, "spce": {}})) != []


def test_there_are_ten_kinds_with_different_names() -> None:
    assert len({kind for _, kind in KINDS}) == len(KINDS) == 10


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("31.12.2026", "write a date as YYYY-MM-DD, such as 2027-03-31, or a time as YYYY-MM-DDThh:mm:ssZ"),
        ("'2026-13-01'", "this is no date: month must be in 1..12"),
        ("12/31/2026", "write a date as YYYY-MM-DD"),
    ],
)
def test_a_date_in_another_format_is_refused_with_the_right_format(written: str, said: str) -> None:
    exception = (
        f"exceptions: [{{name: a, owner: b, reason: c, expires: {written}, "
        "matchConditions: [{name: d, expression: 'true'}]}]"
    )
    (found,) = problems(policy(f"{CHECK}\n{exception}"))
    assert said in found
