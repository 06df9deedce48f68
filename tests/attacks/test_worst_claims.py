"""No claim that hill climbing finds takes much work on the event loop to be checked."""

import asyncio
import dataclasses
import json
import random
from collections.abc import Iterator
from typing import Any, Final

import pytest

from checks.claims import configs
from conversion.objects.wire import AdmissionRequest
from neuron.allocator import search_cost
from neuron.api.claim_reader import claim_spec
from neuron.findings import Suggestions
from neuron.hardware.instances import Catalogue
from tests.attacks.worst_pods import MOST_CALLS, counted_calls
from tests.support.clusters import AskedCluster, FakeCluster, first_step, request
from tests.support.trainium import trainium
from tests.support.validation import claim, devices, first_available, judge, world
from tests.support.validation import request as device_request
from webhook.reviews import claim_reading, validate
from webhook.reviews.validate import Validator
from webhook.reviews.worker_threads import Inline
from webhook.reviews.workloads import MOST_CLAIMS, read_workload
from webhook.server.standalone import StandaloneBackend

TRIES: Final = 40
MOST_BYTES: Final = 4096
"""Of a spec that is judged on the event loop."""
ATTRIBUTES: Final = ("resource.aws.com/devicegroup4_id", "resource.aws.com/devicegroup16_id", "neuron.aws.com/cores")
PARAMETERS: Final = (
    {"kind": "NeuronConfig", "logicalNeuronCore": 1},
    {"kind": "NeuronConfig", "logicalNeuronCore": 2},
    {"kind": "UltraServerConfig", "ultraserverMode": 4},
)


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the work of a claim depends on.

    Attributes:
        requests: the counts of the alternatives of each.
        settings: position in `PARAMETERS` of each config, and the request that it is for; None: all.
        ties: position in `ATTRIBUTES` of each constraint, and the number of requests that it is for; 0: all.
        wrong: references to requests that do not exist.
        letters: of each name, beside its number.
    """

    requests: tuple[tuple[int, ...], ...]
    settings: tuple[tuple[int, int | None], ...] = ()
    ties: tuple[tuple[int, int], ...] = ()
    wrong: int = 0
    letters: int = 1

    def spec(self) -> dict[str, Any]:
        name = "r" * self.letters

        def one(at: int, counts: tuple[int, ...]) -> dict[str, Any]:
            found = [{"deviceClassName": "neuron.aws.com", "count": count} for count in counts]
            if len(found) == 1:
                return {"name": f"{name}{at}", "exactly": found[0]}
            return {
                "name": f"{name}{at}",
                "firstAvailable": [{"name": f"s{each}", **leaf} for each, leaf in enumerate(found)],
            }

        version = {"apiVersion": "resource.aws.com/v1beta1"}
        settings = [
            {
                "requests": [] if only is None else [f"{name}{only % len(self.requests)}"],
                "opaque": {"driver": "neuron.aws.com", "parameters": version | PARAMETERS[at]},
            }
            for at, only in self.settings
        ]
        ties = [
            {
                "matchAttribute": ATTRIBUTES[at],
                "requests": [f"{name}{each}" for each in range(min(most, len(self.requests)))],
            }
            for at, most in self.ties
        ]
        if self.wrong:
            ties.append({"matchAttribute": ATTRIBUTES[0], "requests": [f"q{name}{at}" for at in range(self.wrong)]})
        requests = [one(at, counts) for at, counts in enumerate(self.requests)]
        return {"devices": {"requests": requests, "config": settings, "constraints": ties}}


def start(draw: random.Random) -> Shape:
    return Shape(tuple((draw.randint(1, 16),) for _ in range(draw.randint(1, 32))))


def changed(shape: Shape, draw: random.Random) -> Shape:
    requests, settings, ties = list(shape.requests), list(shape.settings), list(shape.ties)
    wrong, letters = shape.wrong, shape.letters
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(requests))
        match draw.randrange(8):
            case 0 if len(requests) < 32:
                requests.insert(place, (draw.randint(1, 16),))
            case 1 if len(requests) > 1:
                del requests[place]
            case 2:
                requests[place] = tuple(draw.randint(1, 16) for _ in range(draw.choice((1, 1, 2, 3, 8))))
            case 3:
                settings.append((draw.randrange(len(PARAMETERS)), draw.choice((None, place))))
            case 4 if settings:
                settings.pop()
            case 5:
                ties.append((draw.randrange(len(ATTRIBUTES)), draw.choice((0, draw.randint(1, 32)))))
            case 6:
                wrong, letters = draw.randint(0, 32), draw.randint(1, 20)
            case _ if ties:
                ties.pop()
    return Shape(tuple(requests), tuple(settings), tuple(ties), wrong, letters)


def _validator() -> Validator:
    return Validator(trainium(), Catalogue(), StandaloneBackend().view)


def _of_claim(spec: Any, *more: Any) -> AdmissionRequest:
    return request({"spec": spec}, *more, kind="ResourceClaim", group="resource.k8s.io")


def calls_of(spec: Any) -> int:
    """Calls of the check of a claim of which nothing is remembered; the first check fills caches of types."""
    review = _of_claim(spec)
    first_step(_validator().review(review))
    configs._hardware.cache_clear()
    again = _validator()
    return counted_calls(lambda: first_step(again.review(review)))


def calls(shape: Shape) -> int:
    return calls_of(shape.spec())


@pytest.mark.parametrize("seed", range(3))
def test_no_claim_takes_much_work_on_the_event_loop(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - a search, no secret
    worst = shape = start(draw)
    most = calls(shape)
    for _ in range(TRIES):
        shape = changed(worst, draw)
        if len(json.dumps(shape.spec(), separators=(",", ":"))) <= MOST_BYTES and (found := calls(shape)) > most:
            worst, most = shape, found
    assert most < MOST_CALLS, worst


def test_references_to_missing_requests_are_compared_with_few_names() -> None:
    """Each of 32 references is like each of 32 names."""
    assert calls(Shape(((1,),) * 32, wrong=32, letters=10)) < MOST_CALLS


def _device(**fields: Any) -> dict[str, Any]:
    return {"deviceClassName": "neuron.aws.com", **fields}


def _requests(number: int, make: Any) -> dict[str, Any]:
    return {"devices": {"requests": [{"name": f"r{at}", "exactly": make(at)} for at in range(number)]}}


MANY_WRONG: Final[dict[str, dict[str, Any]]] = {
    # 22,500 calls, when every one was compared with the known fields.
    "unknown-fields": _requests(20, lambda _: {f"coun{chr(97 + each)}": 1 for each in range(16)}),
    # 39,000: the steps of a search were counted for pairs of requests on each type.
    "counts-that-are-no-numbers": _requests(24, lambda at: _device(count=10 ** (60 + at))),
    # 24,000: each is a finding.
    "references-that-are-no-texts": {
        "devices": {
            "requests": [{"name": "r", "exactly": _device()}],
            "constraints": [{"matchAttribute": "a/b", "requests": list(range(64))}] * 16,
        }
    },
    "selectors-that-are-none": _requests(8, lambda _: _device(selectors=[{"cel": 1}, {"ce": 1}, 1, {}] * 8)),
    # 18,000: each was compared with all attributes.
    "unknown-attributes": {
        "devices": {
            "requests": [{"name": f"r{at}", "exactly": _device()} for at in range(8)],
            "constraints": [{"matchAttribute": f"resource.aws.com/devicegroup{at}_id"} for at in range(100, 132)],
        }
    },
    # 16,000: pairs of requests and constraints.
    "many-constraints": {
        "devices": {
            "requests": [{"name": f"r{at}", "exactly": _device(count=1 + at % 5)} for at in range(24)],
            "constraints": [{"matchAttribute": f"resource.aws.com/devicegroup{size}_id"} for size in (1, 4, 8, 16) * 8],
        }
    },
    # 16,400: what is wrong with each of the alternatives.
    "alternatives-and-wrong-references": {
        "devices": {
            "requests": [
                {
                    "name": f"r{at}",
                    "firstAvailable": [
                        {"name": f"s{each}", **_device(count=1 + (7 * each + 3 * at) % 24)} for each in range(8)
                    ],
                }
                for at in range(7)
            ],
            "constraints": [{"matchAttribute": "a/b", "requests": [f"r1{at}" for at in range(32)]}],
        }
    },
    # 14,700: references that are wrong, beside as much as is judged on the event loop without them.
    "constraints-and-wrong-references": {
        "devices": {
            "requests": [
                {
                    "name": f"r{at}",
                    "exactly": {"deviceClassName": f"neuron.aws.com{at}", "count": 2 + 2 * at, "selectr": 1},
                }
                for at in range(8)
            ],
            "constraints": [
                {
                    "matchAttribute": "resource.aws.com/devicegroup4_id",
                    "requests": [*(f"r{at}x{each}" for each in range(11)), "r0"],
                }
                for at in range(12)
            ],
        }
    },
}


@pytest.mark.parametrize("spec", MANY_WRONG.values(), ids=MANY_WRONG)
def test_what_is_wrong_with_many_values_takes_little_work_on_the_event_loop(spec: dict[str, Any]) -> None:
    assert len(json.dumps(spec, separators=(",", ":"))) <= MOST_BYTES
    assert calls_of(spec) < MOST_CALLS


def test_claims_of_an_update_are_judged_on_the_event_loop_only_if_both_together_take_little_work() -> None:
    first, second = (_requests(22, lambda at, more=more: _device(count=1 + (at + more) % 16)) for more in (0, 1))
    assert len(json.dumps([first, second], separators=(",", ":"))) <= MOST_BYTES
    assert first_step(_validator().review(_of_claim(first))) is not None
    assert first_step(_validator().review(_of_claim(second, "UPDATE", {"spec": first}))) is None


def test_large_templates_of_a_pod_are_judged_in_the_lane() -> None:
    """Each is as large as the API server allows: 70,000 calls. They were judged on the event loop without selectors."""
    alternatives = [{"name": f"s{each}", **_device(count=1 + each)} for each in range(8)]
    large = {
        "devices": {
            "requests": [{"name": f"r{at}", "firstAvailable": alternatives} for at in range(32)],
            "constraints": [{"matchAttribute": "resource.aws.com/devicegroup4_id"}] * 32,
        }
    }
    one = {"devices": {"requests": [{"name": "r", "exactly": _device()}]}}
    named = {"l": claim_spec(large), "o": claim_spec(one)}
    cluster = FakeCluster(claim_templates={("team-a", name): spec for name, spec in named.items()})

    def pod(name: str) -> dict[str, Any]:
        claims = [{"name": "c", "resourceClaimTemplateName": name}]
        return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}], "resourceClaims": claims}}

    validator = Validator(trainium(), Catalogue(), cluster)
    assert first_step(validator.review(request(pod("o")))) is not None
    assert counted_calls(lambda: first_step(validator.review(request(pod("l"))))) < MOST_CALLS
    assert first_step(validator.review(request(pod("l")))) is None
    asyncio.run(validator.review(request(pod("l"))))
    assert first_step(validator.review(request(pod("l")))) is not None, "it is remembered"


def test_a_long_claim_is_not_read_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    monkeypatch.setattr(validate, "read_specs", lambda *each: (read.append(each), claim_reading.read_specs(*each))[1])

    class Waiting(Inline):
        async def run(self, *each: Any, **more: Any) -> Any:
            assert not read
            return await super().run(*each, **more)

    spec = Shape(((1,),) * 32, wrong=32, letters=60).spec()
    review = request({"spec": spec}, kind="ResourceClaim", group="resource.k8s.io")
    decision = asyncio.run(Validator(trainium(), Catalogue(), StandaloneBackend().view, lane=Waiting()).review(review))
    assert "NEU508" in {each.code for each in decision.errors}
    assert len(read) == 1


def test_requests_for_equal_devices_are_compared_with_the_settings_once() -> None:
    """Each of 32 requests can be for a device of every type."""
    one, many = (Shape(((2,),) * requests, ((0, None),)) for requests in (1, 32))
    assert calls(many) < 12 * calls(one)


def test_alternatives_that_the_api_server_refuses_cost_no_more_than_those_it_allows() -> None:
    """Claims are read up to twice the API's limit. Sets of alternatives are searched, so each one more doubles that."""
    own = 'device.attributes["neuron.aws.com"]'

    def calls_with(alternatives: int) -> int:
        def one(name: str, step: int) -> dict[str, Any]:
            ids = [sorted((at * step + each) % 12 for each in range(5)) for at in range(alternatives)]
            found = {
                f"s{at}": devices(5, f'{own}.instanceType == "inf2.48xlarge"', f"{own}.deviceId in {each}")
                for at, each in enumerate(ids)
            }
            return first_available(name, **found)

        spec, where = claim(one("a", 1), one("b", 5), device_request("c", 1)), world()
        judge(spec, where)  # what is remembered of the selectors does not count
        search_cost.beside.cache_clear()
        return counted_calls(lambda: judge(spec, where))

    assert calls_with(16) < 4 * calls_with(8)


def test_references_to_missing_claims_are_compared_with_few_names() -> None:
    """Each of 96 references of a pod is like each of 20 names: 75 ms, when each was compared with all."""
    holders = [
        {
            "name": f"a{at}",
            "image": "x",
            "resources": {"claims": [{"name": f"{'c' * 40}{at}x{each}"} for each in range(6)]},
        }
        for at in range(16)
    ]
    claims = [{"name": f"{'c' * 40}{at}", "resourceClaimName": "b"} for at in range(20)]
    pod = {"metadata": {"name": "p"}, "spec": {"containers": holders, "resourceClaims": claims}}
    validator = Validator(trainium(), Catalogue(), StandaloneBackend().view)
    assert counted_calls(lambda: first_step(validator.review(request(pod)))) < MOST_CALLS
    assert "NEU703" in {each.code for each in asyncio.run(validator.review(request(pod))).errors}


def test_unknown_fields_of_resources_are_compared_as_long_as_few_were() -> None:
    limits = {"aws.amazon.com/neuron": "1"}
    fields = {f"limi{at}": 1 for at in range(20)}
    holders = [{"name": f"a{at}", "resources": {"limits": limits, **fields}} for at in range(24)]
    pod = {"metadata": {"name": "p"}, "spec": {"containers": holders}}
    validator = Validator(trainium(), Catalogue(), StandaloneBackend().view)
    assert counted_calls(lambda: first_step(validator.review(request(pod)))) < MOST_CALLS
    assert "NEU222" in {each.code for each in asyncio.run(validator.review(request(pod))).warnings}


def test_many_claims_of_one_object_are_not_all_looked_up() -> None:
    """On the event loop: 12,000 of a pod took 25 ms there, and 39 ms of a Workload."""
    cluster = AskedCluster()
    claims = [{"name": f"c{at}", "resourceClaimTemplateName": f"t{at}"} for at in range(2 * MOST_CLAIMS)]
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}], "resourceClaims": claims}}
    asyncio.run(Validator(trainium(), Catalogue(), cluster).review(request(pod)))
    assert set(cluster.looked) == {f"t{at}" for at in range(MOST_CLAIMS)}
    group = {"spec": {"resourceClaims": claims}}
    review = request(group, kind="PodGroup", group="scheduling.k8s.io")
    assert len(read_workload(review, bytes(review.object)).shared) == MOST_CLAIMS


def test_words_that_are_like_none_of_many_are_compared_with_few() -> None:
    """Each of 4,000 references of a pod to claims that it does not declare: 0.5 s, and four times that for twice."""
    looked: list[int] = []

    class Counting(list[str]):
        def __iter__(self) -> Iterator[str]:
            looked.append(len(self))
            return super().__iter__()

    known, suggestions = Counting(f"{'k' * 40}{at}" for at in range(4000)), Suggestions()
    for at in range(4000):
        suggestions.did_you_mean(f"{'z' * 40}{at}", known)
    assert sum(looked) < 1_000_000
