"""Problems of templates that ConversionPolicies map to demands."""

import itertools
import json
import textwrap

import pytest

from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.making import Claim, make_claim
from neuron.hardware.instances import Catalogue
from policies.files import claim_templates
from policies.judging.selectors import DeviceSelectors
from tests.policies.policy_files import loaded, problems

POLICY = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ConversionPolicy
metadata: {{name: {name}}}
spec:
  order: {order}
  families: [trn2]
  templates:
"""
INLINE = """
- demand: {{devices: 4}}
  template:
    metadata: {{name: four{labels}}}
    spec: {{spec: {{devices: {{
      requests: [{{name: r, exactly: {{deviceClassName: neuron.aws.com, count: {count}}}}}]{more}}}}}}}
"""
FOURS = ", constraints: [{matchAttribute: resource.aws.com/devicegroup4_id}]"


def mapping_policy(*entries: str, name: str = "team-a", order: int = 1) -> str:
    body = "\n".join(textwrap.dedent(each).strip("\n") for each in entries)
    return POLICY.format(name=name, order=order) + textwrap.indent(body, "  ") + "\n"


def inline(count: int = 4, more: str = FOURS, labels: str = "") -> str:
    return INLINE.format(count=count, more=more, labels=labels)


NAMED = "- {demand: {devices: 16}, name: xl-trn2}"


def test_names_and_templates_are_read() -> None:
    (rule,) = loaded(mapping_policy(NAMED, inline())).conversions
    named, carried = rule.templates
    assert (named.name, named.amount, named.inline) == ("xl-trn2", 16, None)
    assert carried.inline is not None
    assert carried.inline.manifest("team-a")["metadata"]["name"] == "four"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("- {demand: {}, name: x}", "set either devices or cores"),
        ("- {demand: {devices: 1, cores: 1}, name: x}", "set either devices or cores"),
        ("- {demand: {devices: 1}}", "set either name or template"),
        ("- {demand: {devices: 1}, name: neuron-4-fdc84041cb55}", "this has the form of a generated name"),
        (
            inline(labels=", labels: {app.kubernetes.io/managed-by: me}"),
            "the webhook itself sets app.",
        ),
        (inline(labels=", labels: {a b: c}"), "this must be a label key"),
        (
            inline(labels=", annotations: {neuron.aws.com/prune-after: x}"),
            "the webhook itself sets neuron.",
        ),
        (inline(17), "template four has an error at spec.spec.devices.requests[0].exactly.count: NEU521"),
        (inline(8, FOURS.replace("4_", "8_")), "does not serve a pod that asks for 4 devices: it gives 8 devices on"),
        (inline(4, ""), "does not serve a pod that asks for 4 devices: its devices need not be connected"),
        (
            f"{NAMED}\n- {{demand: {{devices: 16}}, name: other}}",
            "for the same demand as spec.templates[0]",
        ),
    ],
)
def test_problems_are_reported(entry: str, said: str) -> None:
    (problem,) = problems(mapping_policy(entry))
    assert said in problem


def test_one_name_has_one_spec_in_all_policies() -> None:
    other = inline().replace("name: r", "name: other")
    assert problems(mapping_policy(inline()), mapping_policy(other, name="team-b", order=2)) == [
        "1.yaml:11: template four has another spec in policy 'team-a'; give one of them another name."
    ]
    assert problems(mapping_policy(inline()), mapping_policy(inline(), name="team-b", order=2)) == []


def test_each_template_of_a_set_has_its_own_time_for_selectors(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(claim_templates, "DeviceSelectors", lambda: DeviceSelectors(lambda: float(next(seconds))))
    ring = next(entry for entry in Catalogue() if entry.name == "inf2.48xlarge")
    made = make_claim(
        [Ask("main", Role.APP, "spec.containers[0]", "aws.amazon.com/neuron", 8)],
        [ring],
        DeviceConfig(),
        "neuron.aws.com",
        pin_types=True,
    )
    assert isinstance(made, Claim)
    spec = json.dumps(made.template.spec)
    texts = [
        POLICY.format(name=f"team-{number}", order=number).replace("trn2", "inf2")
        + f"  - {{demand: {{devices: 8}}, template: {{metadata: {{name: t-{number}}}, spec: {spec}}}}}\n"
        for number in range(4)
    ]
    assert problems(*texts) == []
