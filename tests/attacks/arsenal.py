"""Single objects that a tenant can send, each meant to stop admission or to get past a policy.

Each entry is one review, built on demand: `Attack.body(size)` scales if the attack has a size.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.attacks.victims import claim_review
from tests.support.serving import review

DRIVER = "neuron.aws.com"
LWS = {"group": "leaderworkerset.x-k8s.io", "version": "v1", "kind": "LeaderWorkerSet"}
JOBSET = {"group": "jobset.x-k8s.io", "version": "v1alpha2", "kind": "JobSet"}
RECORD = "neuron.aws.com/converted-from"
LABEL = {"neuron.aws.com/converted": "true"}
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
GENERATED = "neuron-4-fdc84041cb55"

ANOTHER = "0000"
"""Text in the objects of attacks that differ."""

Members = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Attack:
    """One hostile review.

    Attributes:
        name: for test ids.
        path: of the endpoint.
        make: returns the members of the review's request, for a size.
        size: the size with which the attack was found.
        at_once: number of reviews that are sent at the same time.
        differ: whether these reviews have different objects, so that no cache helps.
        denied: whether it must be denied; None: both answers are right.
        says: expected part of the answer; empty: any text.
        statuses: allowed HTTP statuses, if they differ from those of every review.
    """

    name: str
    path: str
    make: Callable[[int], Members]
    size: int = 1
    at_once: int = 1
    differ: bool = False
    denied: bool | None = None
    says: str = ""
    statuses: tuple[int, ...] = ()

    def body(self, size: int | None = None) -> bytes:
        return json.dumps(review(**self.make(self.size if size is None else size))).encode()

    def bodies(self) -> list[bytes]:
        """The bodies that are sent at the same time."""
        body = self.body()
        if not self.differ:
            return [body] * self.at_once
        return [body.replace(ANOTHER.encode(), f"{index:04}".encode()) for index in range(self.at_once)]


# --- claims ---------------------------------------------------------------------------------------------------


def exactly(name: str, count: int = 1, **more: Any) -> Members:
    return {"name": name, "exactly": {"deviceClassName": DRIVER, "count": count, **more}}


def claim(*requests: Members, **more: Any) -> Members:
    return {"devices": {"requests": list(requests), **more}}


def selecting(*expressions: str, **more: Any) -> Members:
    return claim(exactly("a", selectors=[{"cel": {"expression": each}} for each in expressions], **more))


def powers(size: int) -> Members:
    """Counts whose sums are all different."""
    return claim_review(claim(*(exactly(f"r{index}", 2**index) for index in range(size))))


def odd_counts(size: int) -> Members:
    """The same with counts that a node could nearly have, under one constraint."""
    requests = [exactly(f"r{index}", 3 * index + 1) for index in range(size)]
    constraint = {"matchAttribute": "resource.aws.com/devicegroup4_id"}
    return claim_review(claim(*requests, constraints=[constraint] * 32), "ResourceClaimTemplate")


def alternatives(size: int) -> Members:
    """Every request with as many alternatives as the API allows."""

    def one(index: int) -> Members:
        choices = [{"name": f"s{each}", "deviceClassName": DRIVER, "count": 2**each} for each in range(8)]
        return {"name": f"r{index}", "firstAvailable": choices}

    return claim_review(claim(*map(one, range(size))))


def doubling(size: int) -> Members:
    """Nested lists, each with ten references to the one before: small JSON, exponential comparison."""
    names = [f"v{index}" for index in range(size + 1)]
    text = f"{names[-1]} == {names[-1]}"
    for index in range(size, 0, -1):
        text = f"cel.bind({names[index]}, [{', '.join([names[index - 1]] * 10)}], {text})"
    return claim_review(selecting(f"cel.bind({names[0]}, [1], {text})"))


def long_text(function: str) -> Callable[[int], Members]:
    """A text that is doubled `size` times, and one expression over it, in which it is called `t`."""

    def make(size: int) -> Members:
        text = function
        for index in range(size, 0, -1):
            before = f"t{index - 1}"
            name = "t" if index == size else f"t{index}"
            text = f"cel.bind({name}, {before} + {before}, {text})"
        return claim_review(selecting(f"cel.bind(t0, '{'a' * 64}', {text})"))

    return make


def long_list(function: str) -> Callable[[int], Members]:
    """The same with a list, called `l`."""

    def make(size: int) -> Members:
        text = function
        for index in range(size, 0, -1):
            before = f"l{index - 1}"
            name = "l" if index == size else f"l{index}"
            text = f"cel.bind({name}, {before} + {before}, {text})"
        items = ", ".join(f"'{each:04}'" for each in range(64))
        return claim_review(selecting(f"cel.bind(l0, [{items}], {text})"))

    return make


def loops(size: int) -> Members:
    numbers = "[" + ",".join("1" * 200) + "]"
    text = "true"
    for index in range(size):
        text = f"{numbers}.all(x{index}, {text})"
    return claim_review(selecting(text))


def many_selectors(size: int) -> Members:
    expressions = [
        f"device.attributes['{DRIVER}'].all(k, '{index}x{size}'.matches('(a|b|{index})*c')) || true"
        for index in range(32)
    ]
    return claim_review(
        claim(*(selecting(*expressions)["devices"]["requests"][0] | {"name": f"r{n}"} for n in range(size)))
    )


def quoted_pattern(size: int) -> Members:
    """A selector in which the same wrong thing is found many times, and quotes a text each time."""
    pattern = "(" * size
    return claim_review(selecting(" || ".join([f"'a'.matches('{pattern}')"] * 2)))


def misspelt_fields(size: int) -> Members:
    parameters = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig"} | {
        f"logicalNeuronCor{n}": 1 for n in range(size)
    }
    config = {"requests": ["a"], "opaque": {"driver": DRIVER, "parameters": parameters}}
    return claim_review(claim(exactly("a"), config=[config] * 32))


def unknown_fields(size: int) -> Members:
    return claim_review(claim(exactly("a", **{f"coun{n}": n for n in range(size)})))


def tolerating(size: int) -> Members:
    tolerations = [{"key": f"k{n}", "operator": "Exists"} for n in range(size)]
    return claim_review(claim(*(exactly(f"r{n}", tolerations=tolerations) for n in range(32))))


def constraints(size: int) -> Members:
    requests = [exactly(f"r{n}", 4) for n in range(32)]
    each = {"requests": [f"r{n}" for n in range(32)], "matchAttribute": "resource.aws.com/devicegroup4_id"}
    return claim_review(claim(*requests, constraints=[each] * size))


def literal(size: int) -> Members:
    return claim_review(selecting(f"{'9' * size} > 1"))


# --- pods -----------------------------------------------------------------------------------------------------


def container(name: str, count: object = "4", **more: Any) -> Members:
    return {"name": name, "image": "x", "resources": {"limits": {"aws.amazon.com/neuron": count}, **more}}


def pod(containers: list[Members], metadata: Members | None = None, **spec: Any) -> Members:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "tenant", **(metadata or {})},
        "spec": {"containers": containers, **spec},
    }


def creating(data: Members) -> Members:
    return {"namespace": "tenant", "object": data}


def converted(hints: Members | None = None, **spec: Any) -> Members:
    """A pod with the label and record of a converted pod."""
    value = {"containers": {"a": {"aws.amazon.com/neuron": "4"}}, **({"hints": hints} if hints else {})}
    claims = [{"name": "neuron", "resourceClaimTemplateName": GENERATED}]
    holder = {"name": "a", "image": "x", "resources": {"claims": [{"name": "neuron"}]}}
    metadata = {"labels": LABEL, "annotations": {RECORD: json.dumps(value)}}
    return pod([holder], metadata, resourceClaims=claims, **spec)


def forged_hints(size: int) -> Members:
    tolerations = [{"key": f"k{n}", "operator": "Exists"} for n in range(size)]
    preferred = [
        {"weight": 1, "preference": {"matchExpressions": [{"key": f"k{n}", "operator": "Exists"}]}} for n in range(size)
    ]
    required = [{"key": f"k{n}", "operator": "Exists"} for n in range(size)]
    hints = {
        "tolerations": tolerations,
        "nodeAffinity": {"preferred": preferred, "required": required},
        "labels": {f"l{n}": "x" for n in range(size)},
    }
    affinity = {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": required}]},
        }
    }
    old = converted(hints, tolerations=tolerations, affinity=affinity)
    new = pod([container("a")], {"labels": LABEL, "annotations": old["metadata"]["annotations"]})
    return {"namespace": "tenant", "operation": "UPDATE", "object": new, "oldObject": old}


def forged_creation(size: int) -> Members:
    data = forged_hints(size)["oldObject"]
    data["spec"]["containers"].append(container("b"))
    return creating(data)


def same_names(size: int) -> Members:
    return creating(pod([container("a") for _ in range(size)]))


def many_tolerations(size: int) -> Members:
    tolerations = [{"key": f"k{n}", "operator": "Exists"} for n in range(size)]
    return creating(pod([container("a")], tolerations=tolerations))


def reapplied_tolerations(size: int) -> Members:
    old = converted({"tolerations": []}, tolerations=[{"key": f"k{n}", "operator": "Exists"} for n in range(size)])
    new = pod([container("a")], tolerations=[{"key": f"j{n}", "operator": "Exists"} for n in range(4 * size)])
    return {"namespace": "tenant", "operation": "UPDATE", "object": new, "oldObject": old}


def many_claims(size: int) -> Members:
    claims = [{"name": f"c{n}", "resourceClaimTemplateName": f"t{n}"} for n in range(size)]
    return creating(pod([container("a", claims=[{"name": f"c{n}"} for n in range(size)])], resourceClaims=claims))


def many_containers(size: int) -> Members:
    claims = [{"name": f"c{n}", "resourceClaimTemplateName": "t"} for n in range(size)]
    containers = [{"name": f"a{n}", "resources": {"claims": [{"name": f"c{n}"}]}} for n in range(size)]
    return creating(pod(containers, resourceClaims=claims))


def big(size: int) -> Members:
    """A pod of `size` lists and objects."""
    return creating(pod([container("a")], volumes=[{"name": "v", "emptyDir": {}} for _ in range(size)]))


def many_init_containers(size: int) -> Members:
    return creating(
        pod([container("m", "1")], initContainers=[container(f"i{n}", str(1 + n % 16)) for n in range(size)])
    )


def affinity_terms(size: int) -> Members:
    terms = [
        {
            "matchExpressions": [
                {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [f"t{n}" for n in range(64)]}
            ]
        }
        for _ in range(size)
    ]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    return creating(pod([container("a")], affinity=affinity))


def any_node_terms(size: int) -> Members:
    """Terms that do not mention instance types: each is to get them."""
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [f"n{n}"]}]} for n in range(size)]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    return creating(pod([container("a", "1")], affinity=affinity))


def single_types(size: int) -> Members:
    """Every term names another instance type that does not exist."""
    terms = [
        {"matchExpressions": [{"key": INSTANCE_TYPE, "operator": "In", "values": [f"trn{ANOTHER}{n}"]}]}
        for n in range(size)
    ]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    return creating(pod([container("a", "1")], affinity=affinity))


def type_expressions(size: int) -> Members:
    """The same in one term."""
    data = single_types(size)
    terms = data["object"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    each = [term["matchExpressions"][0] | {"operator": "NotIn"} for term in terms["nodeSelectorTerms"]]
    terms["nodeSelectorTerms"] = [{"matchExpressions": each}]
    return data


def long_node_selector(size: int) -> Members:
    selector = {f"k{ANOTHER}{n}": "v" for n in range(size)} | {INSTANCE_TYPE: "m5.large"}
    return creating(pod([container("a", "1")], nodeSelector=selector))


def deployment(size: int) -> Members:
    template = single_types(size)["object"]
    data = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"template": template}}
    kind = {"group": "apps", "version": "v1", "kind": "Deployment"}
    return {"namespace": "tenant", "kind": kind, "object": data}


def small_containers(size: int) -> Members:
    containers = [{"name": f"{ANOTHER}{n}", "image": "x" * 9} for n in range(size)]
    return creating(pod([*containers, container("a")], {"labels": {"pairs": ""}}))


def jobset(size: int) -> Members:
    jobs = [{"name": f"j{n}", "template": {"spec": {"template": pod([container("a", "7")])}}} for n in range(size)]
    data = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "j"},
        "spec": {"replicatedJobs": jobs},
    }
    return {"namespace": "tenant", "kind": JOBSET, "object": data}


def odd_workers(value: Any) -> Callable[[int], Members]:
    def make(_: int) -> Members:
        data = {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "l"},
            "spec": value,
        }
        return {"namespace": "tenant", "kind": LWS, "object": data}

    return make


def odd(**members: Any) -> Callable[[int], Members]:
    return lambda _: {**creating(pod([container("a")])), **members}


ATTACKS: tuple[Attack, ...] = (
    # Counts of claims.
    Attack("sums", "/validate", powers, 32, denied=True, says="NEU52"),
    Attack("sums-20", "/validate", powers, 20, denied=True),
    Attack("odd-sums", "/validate", odd_counts, 32),
    Attack("alternatives", "/validate", alternatives, 32),
    # Selectors.
    Attack("doubling", "/validate", doubling, 9),
    Attack("doubling-deeper", "/validate", doubling, 60),
    Attack("last-index-of", "/validate", long_text("t.lastIndexOf('aaab') < 0"), 14),
    Attack("index-of", "/validate", long_text("t.indexOf('aaaab') < 0"), 14),
    Attack("matches", "/validate", long_text("t.matches('(a?){900}x$')"), 14),
    Attack("in", "/validate", long_text("t + 'b' in [t + 'c', t + 'd', t + 'e']"), 14),
    Attack("replace", "/validate", long_text("t.replace('a', t).size() > 0"), 14),
    Attack("split", "/validate", long_text("t.split('').size() > 0"), 14),
    Attack("equal", "/validate", long_text("t + 'a' == t + 'b'"), 14),
    Attack("url", "/validate", long_text("url('https://x/?' + t.replace('a', '&a=b')).getQuery().size() > 0"), 14),
    Attack("intersects", "/validate", long_list("sets.intersects(l.map(x, x + 'a'), l.map(x, x + 'b'))"), 11),
    Attack("contains", "/validate", long_list("sets.contains(l, l)"), 11),
    Attack("equivalent", "/validate", long_list("sets.equivalent(l, l)"), 11),
    Attack("list-in", "/validate", long_list("l.all(x, x in l)"), 11),
    Attack("list-equal", "/validate", long_list("l.map(x, l) == l.map(x, l)"), 11),
    Attack("distinct", "/validate", long_list("l.map(x, x + x).distinct().size() > 0"), 11),
    Attack("sort", "/validate", long_list("l.sort() == l"), 11),
    Attack("join", "/validate", long_list("l.join(l.join('a')).size() > 0"), 11),
    Attack("format", "/validate", long_text("'%s%s%s%s'.format([t, t, t, t]).size() > 0"), 14),
    Attack("precision", "/validate", long_text("'%.10005f'.format([1.0]).size() > 0"), 1),
    Attack("loops", "/validate", loops, 6),
    Attack("loops-3", "/validate", loops, 3),
    Attack("many-selectors", "/validate", many_selectors, 32),
    Attack("ten-claims", "/validate", loops, 4, at_once=10),
    Attack("literal", "/validate", literal, 4301),
    # Long answers.
    Attack("quoted-pattern", "/validate", quoted_pattern, 1200),
    Attack("misspelt-fields", "/validate", misspelt_fields, 380, denied=True, says="more"),
    Attack("unknown-fields", "/validate", unknown_fields, 20_000),
    Attack("tolerations-of-claims", "/validate", tolerating, 500),
    Attack("constraints", "/validate", constraints, 2_000),
    # Pods.
    Attack("forged-hints", "/mutate", forged_hints, 1_000),
    Attack("forged-hints-larger", "/mutate", forged_hints, 4_000),
    Attack("forged-creation", "/mutate", forged_creation, 2_000),
    Attack("same-names", "/mutate", same_names, 512),
    Attack("many-tolerations", "/mutate", many_tolerations, 18_000),
    Attack("reapplied-tolerations", "/mutate", reapplied_tolerations, 4_500),
    Attack("many-claims", "/mutate", many_claims, 10_000),
    Attack("many-claims-validated", "/validate", many_claims, 10_000),
    Attack("many-containers", "/mutate", many_containers, 3_000),
    Attack("many-containers-validated", "/validate", many_containers, 3_000),
    Attack("many-init-containers", "/mutate", many_init_containers, 500),
    Attack("affinity-terms", "/mutate", affinity_terms, 1_000),
    Attack("any-node-terms", "/mutate", any_node_terms, 500, denied=True, says="too many node selector terms"),
    Attack("any-node-terms-allowed", "/mutate", any_node_terms, 64, denied=False),
    # Many small ones, each another.
    Attack("single-types", "/mutate", single_types, 275, at_once=32, differ=True, denied=True),
    Attack("few-single-types", "/mutate", single_types, 60, at_once=64, differ=True, denied=False),
    Attack("type-expressions", "/mutate", type_expressions, 250, at_once=32, differ=True),
    Attack("long-node-selector", "/mutate", long_node_selector, 1_700, at_once=32, differ=True, denied=True),
    Attack("deployment", "/validate", deployment, 275, at_once=32, differ=True),
    Attack("small-containers", "/validate", small_containers, 401, at_once=32, differ=True),
    Attack("fewer-small-containers", "/validate", small_containers, 150, at_once=64, differ=True),
    Attack("jobset", "/validate", jobset, 120),
    Attack("jobset-larger", "/validate", jobset, 2_000),
    Attack("big", "/mutate", big, 100_000),
    Attack("big-validated", "/validate", big, 100_000),
    Attack("bigger", "/mutate", big, 230_000),
    # Wrong types.
    *(
        Attack(f"workers-{kind}-{path[1:]}", path, odd_workers(value))
        for kind, value in {
            "number": 1,
            "list": [],
            "text": "x",
            "none": None,
            "nested": {"leaderWorkerTemplate": 3},
        }.items()
        for path in ("/mutate", "/validate")
    ),
    *(
        Attack(f"{member}-{kind}-{path[1:]}", path, odd(**{member: value}), statuses=(400,))
        for member in ("resource", "userInfo", "options")
        for kind, value in {"number": 1, "list": [1], "text": "x"}.items()
        for path in ("/mutate", "/validate")
    ),
    # Policies.
    Attack(
        "all-devices",
        "/validate",
        lambda _: claim_review(claim(exactly("a") | {"exactly": {"deviceClassName": DRIVER, "allocationMode": "All"}})),
    ),
)


def ids() -> Iterator[str]:
    return (attack.name for attack in ATTACKS)
