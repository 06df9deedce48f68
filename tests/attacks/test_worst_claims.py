"""No claim that hill climbing finds takes much work on the event loop to be checked."""

import asyncio
import dataclasses
import json
import random
from typing import Any, Final

import pytest

from checks.claims import configs
from neuron.allocator import search_cost
from neuron.hardware.instances import Catalogue
from tests.attacks.worst_pods import MOST_CALLS, counted_calls
from tests.support.clusters import first_step, request
from tests.support.trainium import trainium
from tests.support.validation import claim, devices, first_available, judge, world
from tests.support.validation import request as device_request
from webhook.reviews import claim_reading, validate
from webhook.reviews.validate import Validator
from webhook.reviews.worker_threads import Inline
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


def calls(shape: Shape) -> int:
    """Calls of the check of a claim of which nothing is remembered; the first check fills caches of types."""
    view = StandaloneBackend().view
    review = request({"spec": shape.spec()}, kind="ResourceClaim", group="resource.k8s.io")
    first_step(Validator(trainium(), Catalogue(), view).review(review))
    configs._hardware.cache_clear()
    again = Validator(trainium(), Catalogue(), view)
    return counted_calls(lambda: first_step(again.review(review)))


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
