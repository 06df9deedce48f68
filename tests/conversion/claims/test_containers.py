from decimal import Decimal

import pytest

from conversion.claims.containers import Ask, Role, basic_requests, legacy_amounts, names_legacy, read, scheduled

DEVICE, ALIAS, CORE = "aws.amazon.com/neuron", "aws.amazon.com/neurondevice", "aws.amazon.com/neuroncore"


@pytest.mark.parametrize(
    ("limits", "requests", "resource", "amount"),
    [
        ({DEVICE: "4"}, {}, DEVICE, 4),
        ({DEVICE: "4"}, {DEVICE: "4"}, DEVICE, 4),
        ({DEVICE: "4"}, {DEVICE: 4}, DEVICE, 4),
        ({ALIAS: "1"}, {ALIAS: "1"}, ALIAS, 1),
        ({CORE: "9", "cpu": "4"}, {CORE: "9", "cpu": "1"}, CORE, 9),
        ({DEVICE: "1e1"}, {DEVICE: "10"}, DEVICE, 10),
        ({DEVICE: "0"}, {}, "", 0),
        ({DEVICE: "0", CORE: "2"}, {}, CORE, 2),
        ({"cpu": "4"}, {}, "", 0),
        ({}, {}, "", 0),
    ],
    ids=str,
)
def test_a_valid_ask_is_read(
    limits: dict[str, object], requests: dict[str, object], resource: str, amount: int
) -> None:
    ask, findings = read("main", Role.APP, "spec.containers[0]", limits, requests)
    assert (ask.resource, ask.amount, findings) == (resource, amount, [])


@pytest.mark.parametrize(
    ("limits", "requests", "code", "path", "message"),
    [
        (
            {DEVICE: "half"}, {}, "NEU101", f"spec.containers[0].resources.limits[{DEVICE}]",
            f"container main asks for {DEVICE}: 'half', which is not a quantity.",
        ),
        (
            {DEVICE: "500m"}, {}, "NEU101", f"spec.containers[0].resources.limits[{DEVICE}]",
            f"container main asks for {DEVICE}: '500m', which is not a whole number.",
        ),
        (
            {DEVICE: "-1"}, {}, "NEU101", f"spec.containers[0].resources.limits[{DEVICE}]",
            f"container main asks for {DEVICE}: '-1', which is negative.",
        ),
        (
            {}, {DEVICE: "4"}, "NEU102", f"spec.containers[0].resources.requests[{DEVICE}]",
            f"container main requests {DEVICE}: 4 without a limit.",
        ),
        (
            {DEVICE: "4"}, {DEVICE: "2"}, "NEU103", f"spec.containers[0].resources.requests[{DEVICE}]",
            f"container main requests {DEVICE}: 2 but its limit is 4.",
        ),
        (
            {DEVICE: "4", ALIAS: "8"}, {}, "NEU104", "spec.containers[0].resources.limits",
            f"container main asks for {DEVICE}: 4 and {ALIAS}: 8, which name different amounts of the same hardware.",
        ),
    ],
    ids=["text", "fraction", "negative", "request-only", "unequal", "two-names"],
)  # fmt: skip
def test_an_invalid_ask_has_a_message_a_path_and_a_fix(
    limits: dict[str, object], requests: dict[str, object], code: str, path: str, message: str
) -> None:
    ask, (finding,) = read("main", Role.APP, "spec.containers[0]", limits, requests)
    assert (finding.code, finding.path, finding.message) == (code, path, message)
    assert finding.fix
    assert finding.value
    assert ask.amount == 0


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({DEVICE: "16", ALIAS: "16", CORE: "32"}, (DEVICE, 16, 32)),
        ({ALIAS: "4", CORE: "8"}, (ALIAS, 4, 8)),
        ({DEVICE: "4", ALIAS: "4"}, (DEVICE, 4, 0)),
        ({DEVICE: "0", CORE: "8"}, (CORE, 8, 0)),
    ],
    ids=["three-names", "devices-and-cores", "two-names-for-devices", "zero-devices"],
)
def test_names_for_the_same_devices_are_one_ask(limits: dict[str, object], expected: tuple[str, int, int]) -> None:
    ask, findings = read("main", Role.APP, "spec.containers[0]", limits, {})
    assert (ask.resource, ask.amount, ask.cores) == expected
    assert findings == []


def test_all_findings_of_a_container_are_reported_together() -> None:
    _, findings = read("main", Role.APP, "spec.containers[0]", {DEVICE: "x"}, {CORE: "1"})
    assert [finding.code for finding in findings] == ["NEU101", "NEU102"]


def test_a_request_that_is_a_copy_of_the_limit_is_reported_once() -> None:
    _, findings = read("main", Role.APP, "spec.containers[0]", {DEVICE: "x"}, {DEVICE: "x"})
    assert [finding.path for finding in findings] == [f"spec.containers[0].resources.limits[{DEVICE}]"]


def test_an_ask_names_its_container_its_role_and_its_place() -> None:
    assert read("main", Role.INIT, "spec.x", {DEVICE: "4"}, {})[0] == Ask("main", Role.INIT, "spec.x", DEVICE, 4)
    assert read("main", Role.INIT, "spec.x", {DEVICE: "x"}, {})[0] == Ask("main", Role.INIT, "spec.x")
    assert read("main", Role.INIT, "spec.x", {DEVICE: "0"}, {})[0] == Ask("main", Role.INIT, "spec.x")


@pytest.mark.parametrize("resource", [DEVICE, ALIAS, CORE])
@pytest.mark.parametrize("field", ["limits", "requests"])
def test_legacy_names_are_found_in_limits_and_requests(field: str, resource: str) -> None:
    assert names_legacy({field: {resource: "1", "cpu": "1"}})
    assert not names_legacy({"limits": None, "requests": {"cpu": "1"}, field: {"cpu": "1"}})


def test_a_huge_value_is_cut_in_messages() -> None:
    _, (finding,) = read("main", Role.APP, "spec.containers[0]", {DEVICE: "9" * 5000}, {})
    assert len(finding.message) < 200
    assert len(finding.value) == 64


def test_a_long_name_is_cut_in_messages() -> None:
    _, (finding,) = read("x" * 100_000, Role.APP, "spec.containers[0]", {DEVICE: "many"}, {})
    assert len(finding.message) < 200


@pytest.mark.parametrize("value", [[], {"a": "b" * 100_000}], ids=["list", "object"])
@pytest.mark.parametrize("field", ["limits", "requests"])
def test_invalid_quantities_are_refused_in_limits_and_requests(field: str, value: object) -> None:
    asked = {"limits": {DEVICE: "4"}, "requests": {}}
    asked[field] = asked[field] | {ALIAS: value}
    _, (finding,) = read("main", Role.APP, "spec.containers[0]", **asked)
    assert (finding.code, finding.path) == ("NEU101", f"spec.containers[0].resources.{field}[{ALIAS}]")
    assert len(finding.message) < 200


def test_null_is_no_amount_as_for_the_api_server() -> None:
    assert read("main", Role.APP, "spec.x", {DEVICE: None}, {})[0] == Ask("main", Role.APP, "spec.x")
    assert read("main", Role.APP, "spec.x", {DEVICE: None, CORE: "2 "}, {})[0].amount == 2
    _, (finding,) = read("main", Role.APP, "spec.x", {}, {DEVICE: None})
    assert finding.code == "NEU102"


@pytest.mark.parametrize("value", ["4", 4, 4.0, "4.0", "4e0", "4000m", " 4 "])
def test_amounts_are_recorded_as_one_number_however_they_are_written(value: object) -> None:
    assert legacy_amounts({DEVICE: value}, {DEVICE: "16"}) == {DEVICE: "4"}
    assert legacy_amounts({}, {DEVICE: value}) == {DEVICE: "4"}


def test_the_scheduler_counts_containers_together_or_the_largest_init_container() -> None:
    def asks(amount: object, resource: str = "aws.amazon.com/neuron", **more: str) -> dict[str, object]:
        return {"resources": {"limits": {resource: amount, "cpu": "1"}}, **more}

    cores = "aws.amazon.com/neuroncore"
    spec = {"containers": [asks("4"), asks(2), {}, "odd"], "initContainers": [asks("16"), asks("1", cores)]}
    assert scheduled(spec) == {"aws.amazon.com/neuron": 16, cores: 1}
    sidecars = {"containers": [asks("4")], "initContainers": [asks("1", restartPolicy="Always"), asks("2")]}
    assert scheduled(sidecars) == {"aws.amazon.com/neuron": 5}
    # An init container runs beside the sidecars before it, and not beside those after it.
    beside = {"initContainers": [asks("1", restartPolicy="Always"), asks("4"), asks("2", restartPolicy="Always")]}
    assert scheduled({"containers": [asks("1")], **beside}) == {"aws.amazon.com/neuron": 5}
    assert scheduled(None) == scheduled({"containers": [asks("many")]}) == {}


def test_a_request_without_a_limit_counts() -> None:
    asked = [{"resources": {"requests": {"aws.amazon.com/neuron": "2"}}}]
    assert scheduled({"containers": asked}) == {"aws.amazon.com/neuron": 2}


CPU_2 = {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "3", "memory": "1Gi"}}}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({"containers": [CPU_2, CPU_2]}, 4, id="requests"),
        pytest.param({"containers": [{"resources": {"limits": {"cpu": "500m"}}}]}, "0.5", id="limit"),
        pytest.param({"containers": [CPU_2], "initContainers": [CPU_2, CPU_2]}, 2, id="init containers"),
        pytest.param({"containers": [CPU_2], "initContainers": [CPU_2 | {"restartPolicy": "Always"}]}, 4, id="sidecar"),
        pytest.param({"containers": [CPU_2], "resources": {"requests": {"cpu": "9"}}}, 9, id="request of the pod"),
        pytest.param({"containers": [CPU_2], "resources": {"limits": {"cpu": "9"}}}, 2, id="limit of the pod"),
        pytest.param({"containers": [{}], "resources": {"limits": {"cpu": "9"}}}, 9, id="only a limit of the pod"),
        pytest.param({"containers": [CPU_2], "overhead": {"cpu": "1"}}, 3, id="overhead"),
        pytest.param({"containers": [{}], "overhead": {"cpu": "1"}}, 1, id="only overhead"),
    ],
)
def test_requests_of_cpu(spec: object, cpu: object) -> None:
    assert basic_requests(spec).get("cpu") == (None if cpu is None else Decimal(str(cpu)))


def test_other_resources_are_no_basic_requests() -> None:
    assert basic_requests({"containers": [CPU_2, {"resources": {"requests": {"aws.amazon.com/neuron": "2"}}}]}) == {
        "cpu": 2,
        "memory": 2**30,
    }
