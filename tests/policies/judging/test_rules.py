"""Programs: what they read, which types they know, and that threads may share them."""

import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from kubecel.budget import Budget
from kubecel.compile import Cel, Program
from kubecel.errors import CelTypeError
from kubecel.types import BOOL, DYN, INT, STRING, list_of, map_of, optional_of, record
from kubecel.values import Duration, Optional, Timestamp, UInt
from kubecel_tests.evaluating import ENGINE, compiled, frozen_clock, value
from neuron.findings import did_you_mean

POD: dict[str, Any] = {
    "metadata": {"name": "train", "labels": {"app": "train"}},
    "spec": {"containers": [{"name": "main", "image": "example.com/train:v1"}]},
}

REFERENCES = {
    "object.metadata.name == 'x'": {("object", "metadata", "name")},
    "object['metadata'].labels['app']": {("object", "metadata", "labels", "app")},
    "has(object.spec.hostNetwork)": {("object", "spec", "hostNetwork")},
    "object.?spec.?nodeSelector.orValue({})": {("object", "spec", "nodeSelector")},
    "object.spec.containers.all(c, c.name == request.name)": {("object", "spec", "containers"), ("request", "name")},
    "object.spec.containers[0].name": {("object", "spec", "containers")},
    "[1].all(object, object > 0)": set(),
    "[1].all(x, object.a == x) && object.b": {("object", "a"), ("object", "b")},
    "cel.bind(object, request.object, object.kind == 'Pod')": {("request", "object")},
    "object.a.optMap(request, request + object.b)": {("object", "a"), ("object", "b")},
    "object.m[object.k]": {("object", "m"), ("object", "k")},
    "1 + 1": set(),
}


@pytest.mark.parametrize(("source", "expected"), REFERENCES.items(), ids=REFERENCES)
def test_a_program_lists_the_paths_that_it_reads(source: str, expected: set[tuple[str, ...]]) -> None:
    assert compiled(source, {"object": None, "request": None}).references == expected


TYPES = {
    "object.a": DYN,
    "neuron.devices": INT,
    "neuron.devices + 1 > 3": BOOL,
    "neuron.names": list_of(STRING),
    "neuron.names[0]": STRING,
    "neuron.names.map(n, n.size())": list_of(INT),
    "neuron.names.filter(n, n != '')": list_of(STRING),
    "neuron.names[?0]": optional_of(STRING),
    "neuron.names[?0].orValue('')": STRING,
    "neuron.names.first().optMap(n, n.size())": optional_of(INT),
    "neuron.names.transformMap(i, n, n.size())": map_of(INT, INT),
    "neuron.by.all(k, v, v > 0)": BOOL,
    "neuron.by['a'] + 1": INT,
    "neuron.?devices": optional_of(INT),
    "{'a': [1]}": map_of(STRING, list_of(INT)),
    "true ? neuron.devices : object.a": DYN,
    "cel.bind(n, neuron.names, n.sort())": list_of(STRING),
    "neuron.names.map(n, quantity(n).asInteger()).sum()": INT,
    "neuron.map(field, field)": list_of(STRING),
    "'devices' in neuron": BOOL,
    "neuron[object.a]": DYN,
    "neuron.all(k, v, v != null)": BOOL,
}


@pytest.mark.parametrize(("source", "expected"), TYPES.items(), ids=TYPES)
def test_types_are_inferred_through_an_expression(source: str, expected: object) -> None:
    neuron = record("neuron", {"devices": INT, "names": list_of(STRING), "by": map_of(STRING, INT)})
    assert ENGINE.compile(source, {"object": DYN, "neuron": neuron}).result == expected


def test_records_keep_their_fields_through_lists() -> None:
    request = record("request", {"count": INT})
    variables = {"requests": list_of(request)}
    assert ENGINE.compile("requests.all(r, r.count > 0)", variables).result == BOOL
    with pytest.raises(CelTypeError, match=r"'request' has no field 'counts'\. Did you mean 'count'\?"):
        ENGINE.compile("requests.all(r, r.counts > 0)", variables)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("o.a.b.c.d", 1),
        ("o['a'].b['c'].d + 1", 2),
        ("has(o.a.b.c.d) && !has(o.a.b.c.e)", True),
        (".o.a.b.?c.d.orValue(0)", 1),
        ("(true || o.a.b.c.e) && !(false && o.a.b.x.d)", True),
        (".size(o) == 1", True),
    ],
)
def test_long_paths_are_walked(source: str, expected: object) -> None:
    assert value(source, o={"a": {"b": {"c": {"d": 1}}}}) == expected


def test_an_object_is_evaluated_without_a_copy() -> None:
    program = compiled("object", {"object": None})
    assert program.evaluate({"object": POD}, Budget(frozen_clock)) is POD


def test_any_mapping_is_a_map_and_any_tuple_a_list() -> None:
    frozen = MappingProxyType({"a": (1, 2), "b": MappingProxyType({})})
    assert value("o.a[1] == 2 && 1 in o.a && 'b' in o && o.b == {} && o.a == [1, 2] && has(o.a)", o=frozen) is True


class Computed(dict[str, object]):
    """Computes its values when they are first looked up, like the variables of an admission policy."""

    asked: list[str]

    def __missing__(self, key: str) -> object:
        self.asked.append(key)
        if key == "nope":
            raise KeyError(key)
        self[key] = found = len(key)
        return found


def test_values_of_a_mapping_can_be_computed_on_lookup() -> None:
    variables = Computed()
    variables.asked = []
    program = compiled("v.ab + v.ab + v.?abc.orValue(0) + (false ? v.never : 0)", {"v": None})
    assert program.evaluate({"v": variables}, Budget(frozen_clock)) == 7
    assert variables.asked == ["ab", "abc"]
    assert compiled("v.?nope.hasValue()", {"v": None}).evaluate({"v": variables}, Budget(frozen_clock)) is False


class Roots(Mapping[str, object]):
    """Root variables of which one is never to be asked for."""

    def __getitem__(self, name: str) -> object:
        if name == "expensive":
            raise AssertionError("was computed")
        return POD

    def __iter__(self) -> Iterator[str]:
        return iter(("object", "expensive"))

    def __len__(self) -> int:
        return 2


def test_only_used_variables_are_looked_up() -> None:
    program = ENGINE.compile("object.metadata.name", {"object": DYN, "expensive": DYN})
    assert program.evaluate(Roots(), Budget(frozen_clock)) == "train"


VALUES = {
    "1u": UInt(1),
    "duration('1.5s')": Duration(1_500_000_000),
    "timestamp('1970-01-01T00:00:01Z')": Timestamp(1_000_000_000),
    "b'a'": b"a",
    "null": None,
    "{'a': [1.5, 2.0]}": {"a": [1.5, 2.0]},
}


@pytest.mark.parametrize(("source", "expected"), VALUES.items(), ids=VALUES)
def test_results_have_the_documented_python_types(source: str, expected: object) -> None:
    found = value(source)
    assert (type(found), found) == (type(expected), expected)


def test_an_optional_result_is_an_optional_value() -> None:
    found = value("optional.of(1)")
    assert isinstance(found, Optional)
    assert (found.present, found.value) == (True, 1)


def test_variables_of_loops_hide_outer_ones_only_inside() -> None:
    assert value("x.map(x, x + 1) + x", x=[1, 2]) == [2, 3, 1, 2]
    assert value("cel.bind(y, x[0], [5].map(x, x + y)) + x", x=[1, 2]) == [6, 1, 2]


def test_a_loop_may_run_inside_itself_by_nesting() -> None:
    assert value("l.map(a, l.map(b, a * b))", l=[1, 2]) == [[1, 2], [2, 4]]


def test_threads_may_share_a_program_and_an_engine() -> None:
    program = compiled("l.map(x, x * n).sum()", {"l": None, "n": None})
    wrong: list[object] = []

    def evaluate(number: int) -> None:
        for _ in range(200):
            found = program.evaluate({"l": [1, 2, 3], "n": number}, Budget(frozen_clock))
            fresh = ENGINE.compile(f"{number} + {number}", {}).evaluate({}, Budget(frozen_clock))
            if found != 6 * number or fresh != 2 * number:
                wrong.append((number, found, fresh))

    threads = [threading.Thread(target=evaluate, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_backend_fits_the_interface() -> None:
    engine: Cel = Cel(hint=did_you_mean)
    program: Program = engine.compile("true", {})
    assert (program.source, program.result) == ("true", BOOL)
    assert program.evaluate({}, Budget(frozen_clock)) is True


def loaded_after(statement: str) -> set[str]:
    """Which of the heavy libraries a fresh interpreter has loaded after a statement."""
    report = (
        "import sys; print(*sorted({'celpy', 'lark', 're2', 'pendulum', 'kubernetes', 'starlette'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", f"{statement}; {report}"], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_engine_loads_no_parser() -> None:
    assert loaded_after("import kubecel.compile, kubecel.devices, checks.claims.analysis") == set()


def test_compiling_loads_the_grammar_but_never_the_interpreter_of_cel_python() -> None:
    assert loaded_after("from kubecel.compile import Cel; Cel().compile('1 + 1', {})") == {"lark"}


def test_regular_expressions_load_re2_when_they_are_first_used() -> None:
    assert loaded_after('from kubecel.compile import Cel; Cel().compile(\'"a".matches("b")\', {})') == {"lark", "re2"}
