"""The server and the commands have the same result for random objects in random namespaces (see test_one_decision)."""

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commands.objects.manifests import FileStore, manifests_of
from conversion.objects.kinds import KINDS
from tests.commands import test_one_decision as one

RESOURCE = st.sampled_from(
    [one.NEURON, "aws.amazon.com/neurondevice", "aws.amazon.com/neuroncore", "vpc.amazonaws.com/efa"]
)
AMOUNT = st.sampled_from(["1", 4, "16", "2", "7", "33", "0", "many", "4k", None, []])
TYPES = ["trn1.32xlarge", "trn2.48xlarge", "trn2u.48xlarge", "inf2.48xlarge", "m5.large", "nope"]
SETTINGS = {
    "convert": ["true", "off", "convert-if-enriched", "x"],
    "logical-neuron-core": ["1", "2", "3"],
    "instance-type": TYPES,
    "ultraserver-mode": ["1", "2", "4", "x"],
    "convrt": ["off"],
}
ANNOTATIONS = st.fixed_dictionaries(
    {}, optional={f"neuron.aws.com/{key}": st.sampled_from([*values, ["x"]]) for key, values in SETTINGS.items()}
)
REQUIREMENT = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["node.kubernetes.io/instance-type", "karpenter.k8s.aws/instance-family"]),
        "operator": st.sampled_from(["In", "NotIn", "Exists", "in"]),
    },
    optional={"values": st.lists(st.sampled_from([*TYPES, 5]), max_size=2)},
)
SPEC = st.fixed_dictionaries(
    {},
    optional={
        "nodeSelector": st.dictionaries(
            st.sampled_from(["node.kubernetes.io/instance-type", "karpenter.sh/capacity-type", "a"]),
            st.sampled_from([*TYPES, 5]),
            max_size=2,
        ),
        "affinity": st.lists(REQUIREMENT, max_size=2).map(
            lambda found: {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": found}]
                    }
                }
            }
        ),
        "tolerations": st.sampled_from([[{"operator": "Exists"}], [5], None]),
        "nodeName": st.sampled_from(["n1", 5]),
        "schedulerName": st.sampled_from(["my-scheduler", "volcano", 5]),
        "resourceClaims": st.sampled_from([[{"name": "neuron", "resourceClaimName": "a"}], [5]]),
        "initContainers": st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from(["i0", "i1", "c0"])},
                optional={
                    "restartPolicy": st.sampled_from(["Always", 5]),
                    "resources": st.dictionaries(st.just("limits"), st.dictionaries(RESOURCE, AMOUNT, max_size=1)),
                },
            ),
            max_size=2,
        ),
    },
)


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    """A pod template whose first container names a Neuron resource."""
    limits = [{one.NEURON: draw(AMOUNT)}, *draw(st.lists(st.dictionaries(RESOURCE, AMOUNT, max_size=2), max_size=2))]
    containers = [{"name": f"c{at}", "resources": {"limits": each}} for at, each in enumerate(limits)]
    return {"metadata": {"annotations": draw(ANNOTATIONS)}, "spec": {"containers": containers, **draw(SPEC)}}


@st.composite
def objects(draw: st.DrawFn) -> list[dict[str, Any]]:
    """An object with pods, and perhaps its Namespace."""
    (group, kind), entry = draw(st.sampled_from([each for each in KINDS.items() if each[1].templates]))
    item: dict[str, Any] = {"apiVersion": f"{group}/v1".lstrip("/"), "kind": kind, "metadata": {"name": "serve"}}
    pod = draw(pods())
    if not entry.metadata:
        del pod["metadata"]
    made = one.nested(draw(st.sampled_from(entry.templates)), pod)
    item = {**item, **made, "metadata": {**made.get("metadata", {}), **item["metadata"]}}
    metadata = {"name": "default", "annotations": draw(ANNOTATIONS)}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    return [item, *([namespace] if draw(st.booleans()) else [])]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(objects())
def test_server_and_commands_agree_on_random_objects(found: list[dict[str, Any]]) -> None:
    item, *_ = found
    entry = KINDS[str(item["apiVersion"]).rpartition("/")[0], item["kind"]]
    files = "\n---\n".join(map(json.dumps, found))
    view = FileStore(manifest for each in found for manifest in manifests_of(each))
    namespace = "default" if entry.namespaced else ""
    from_server, refused = one.of_server(item, view, namespace)
    validated = json.loads(one.run_on_item("validate", files, "-o", "json")[1])["findings"]
    said = [(each["object"].startswith(item["kind"]), (each["code"], one.plain(each["path"]))) for each in validated]
    told = {each for of_item, each in said if of_item}
    of_namespace = {each for of_item, each in said if not of_item} - told
    codes = {code for code, _ in told} - one.NOT_OF_SERVER
    from_server -= one.OF_SERVER_ONLY
    # A pod that `/mutate` refuses does not reach `/validate`.
    assert from_server <= codes if refused else from_server == codes
    assert one.of_explain(files) == told
    converted = set(one.of_convert(one.run_on_item("convert", files)[1])) - of_namespace
    assert {each for each in converted if each[0] not in one.OF_CONVERT_ONLY} == told
    for command in ("validate", "convert", "explain"):
        assert one.run_on_item(command, files)[0] == int(refused), command
