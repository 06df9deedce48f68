"""Errors of expressions: message, position and excerpt."""

import pytest

from kubecel.budget import Budget, Limits
from kubecel.compile import Cel
from kubecel.errors import CelError, CelRuntimeError, CelSyntaxError, CelTypeError, CelUnsupportedError
from kubecel.types import BOOL, DYN, INT, STRING, list_of, record
from kubecel_tests.evaluating import ENGINE, frozen_clock, value

NEURON = record("neuron", {"devices": INT, "cores": INT, "requests": list_of(DYN)})
VARIABLES = {"object": DYN, "neuron": NEURON, "name": STRING}

REFUSED: dict[type[CelError], dict[str, tuple[str, int]]] = {
    CelSyntaxError: {
        "1 + )": ("unexpected ')'", 5),
        "1 +": ("the expression ends too early", 4),
        "": ("the expression ends too early", 1),
        "a # b": ("unexpected '#'", 3),
        "'abc": ("a string does not end, or contains an unknown escape", 1),
        r"'a\qb'": ("a string does not end, or contains an unknown escape", 1),
        r"'\ud800'": (r"\ud800 is not a character", 1),
        r"b'\u0041'": (r"\u0041 is not allowed in bytes: write \x", 1),
        "b'a\ud800'": ("a literal with half a surrogate pair has no UTF-8 bytes", 1),
        "object.`a`": ("fields in backquotes are not supported: write map['a.b']", 8),
        "package": ("'package' is a reserved word", 1),
        "object.in": ("'in' is a reserved word: write ['in']", 8),
        "9223372036854775808": ("9223372036854775808 is out of range for an int", 1),
        "has(object)": ("'has' requires a field, such as has(object.metadata)", 5),
        "[1].all(1, true)": ("'all' requires the name of a variable here", 9),
        "[1].all(x, x, true)": ("'all' has two variables named 'x'", 12),
        "size('a'){a: 1}": ("the name of a type must stand before '{'", 10),
    },
    CelUnsupportedError: {
        "Pod{a: 1}": ("there is no type 'Pod' of which an object can be made here: write a map", 4),
        "math.greatest(1, 2)": ("there is no function 'math.greatest' here.", 6),
        "name.startWith('a')": ("there is no method 'startWith' here. Did you mean 'startsWith'?", 6),
        "isQuantiti(name)": ("there is no function 'isQuantiti' here. Did you mean 'isQuantity'?", 1),
        "startsWith(name, 'a')": ("'startsWith' is a method: write value.startsWith(…)", 1),
    },
    CelTypeError: {
        "objekt.kind": ("there is no variable 'objekt'. Did you mean 'object'?", 1),
        "zzz": ("there is no variable 'zzz'. Known here: name, neuron, object.", 1),
        "neuron.device": ("'neuron' has no field 'device'. Did you mean 'devices'?", 8),
        "neuron.zzz": ("'neuron' has no field 'zzz'. It has cores, devices, requests.", 8),
        "has(neuron.core)": ("'neuron' has no field 'core'. Did you mean 'cores'?", 12),
        "neuron['device']": ("'neuron' has no field 'device'. Did you mean 'devices'?", 7),
        "1 + 'a'": ("'+' does not take (int, string)", 3),
        "neuron.devices == '4'": ("'==' does not take (int, string)", 16),
        "name < 4": ("'<' does not take (string, int)", 6),
        "4 in neuron.devices": ("'in' does not take (int, int)", 3),
        "-name": ("'-' does not take (string)", 1),
        "!neuron.devices": ("'!' requires bool, not int", 9),
        "true && neuron.devices": ("'&&' requires bool, not int", 16),
        "1 ? 2 : 3": ("'? :' requires bool, not int", 1),
        "true ? 1 : 'a'": ("both sides of ':' must have the same type, not int and string", 6),
        "[1, 'a']": (
            "all elements of a literal must have the same type: expected int, found string; wrap each in dyn() to mix",
            5,
        ),
        "{'a': 1, 'b': object}": (
            "all values of a literal must have the same type: expected int, found dyn; wrap each in dyn() to mix",
            15,
        ),
        "object[duration('1h')]": ("a value cannot be indexed by google.protobuf.Duration", 8),
        "'%d'.format([['a'].max()])": ("%d of format does not take a string", 20),
        "'%s'.format([[optional.of(1)]])": ("%s of format does not take a optional_type", 24),
        "[1, ?optional.of(name)]": (
            "all elements of a literal must have the same type: expected int, found string; wrap each in dyn() to mix",
            15,
        ),
        "optional.of(optional.of(name)).?a": (
            "a value of type optional_type(optional_type(string)) cannot have fields",
            33,
        ),
        "{'a': 1}.sortBy(x, x)": ("'sortBy' sorts a list, not map(string, int)", 10),
        "duration(1)": ("duration() takes a text such as '30s', not 1", 1),
        "[?1]": ("'?' requires an optional value, not int", 3),
        "name.x": ("a value of type string cannot have fields", 6),
        "name[0]": ("a value of type string cannot be indexed", 5),
        "neuron.requests['a']": ("a list(dyn) is indexed by int, not by string", 17),
        "name.startsWith(1)": ("'startsWith' does not take string.(int)", 6),
        "size(1)": ("'size' does not take (int)", 1),
        "neuron.devices.all(d, true)": ("'all' loops over a list or a map, not over int", 16),
        "[1].all(x, x)": ("'all' requires bool, not int", 12),
        "[[1]].sortBy(x, x)": ("'sortBy' cannot order by list(int)", 17),
        "[1].transformMapEntry(i, v, 1)": ("'transformMapEntry' requires a map, not int", 29),
        "name.optMap(x, x)": ("'optMap' requires an optional, not string", 6),
        "object.?a.optFlatMap(x, 1)": ("'optFlatMap' requires an expression that returns an optional, not int", 25),
        "name.orValue('a')": ("'orValue' requires an optional, not string", 6),
        "optional.of(1).orValue('a')": ("'orValue' of an optional_type(int) does not take (string)", 16),
        "name.matches('a(')": ("'a(' is not a regular expression that RE2 accepts: missing ): a(", 6),
        "duration('1d') < duration('2s')": ("'1d' is not a duration: write e.g. 30s, 5m or 1h30m", 1),
        "timestamp('yesterday')": ("'yesterday' is not a timestamp: write RFC 3339, e.g. 2026-01-31T12:00:00Z", 1),
        "int('four')": ("'four' is not an int", 1),
        "'%s %s'.format([name])": ("format has 2 clauses and 1 values", 9),
    },
}
"""What is wrong with an expression, and in which column."""


@pytest.mark.parametrize(("kind", "source"), [(kind, source) for kind, rows in REFUSED.items() for source in rows])
def test_an_invalid_expression_is_a_compile_error(kind: type[CelError], source: str) -> None:
    message, column = REFUSED[kind][source]
    with pytest.raises(kind) as caught:
        ENGINE.compile(source, VARIABLES)
    assert caught.value.message == message
    assert (caught.value.line, caught.value.column) == (1, column)


FAILING = {
    "o.a.zzz": ("no such key: 'zzz'", 5),
    "o.zzz.a.b": ("no such key: 'zzz'", 3),
    "o['a']['zzz']": ("no such key: 'zzz'", 7),
    "o[4]": ("no such key: 4", 2),
    "o.a.b.c": ("no such key: 'c': a int has no keys", 7),
    "l[5]": ("index out of bounds: 5 in a list of 2", 2),
    "l[-1]": ("index out of bounds: -1 in a list of 2", 2),
    "l['a']": ("a list is indexed by int, not by string", 2),
    "o[n]": ("a null_type cannot be the key of a map: keys are bool, int, uint or string", 2),
    "l[0] + s": ("'+' does not take (int, string)", 6),
    "l < l": ("'<' does not take (list, list)", 3),
    "9223372036854775807 + l[0]": ("integer overflow in '+': 9223372036854775808 does not fit 64 bits", 21),
    "1u - dyn(2u)": ("unsigned integer overflow in '-': -1 does not fit 64 bits", 4),
    "l[0] / (l[0] - 1)": ("division by zero", 6),
    "l[0] % (l[0] - 1)": ("modulus by zero", 6),
    "-s": ("'-' does not take (string)", 1),
    "!s": ("'!' requires bool, not string", 1),
    "true && s": ("'&&' requires bool, not string", 6),
    "s ? 1 : 2": ("'? :' requires bool, not string", 3),
    "1 in s": ("'in' does not take (int, string)", 3),
    "'a' in dyn(o.?a)": ("'in' requires a list or a map, not an optional: use .orValue([]) first", 5),
    "s.all(x, true)": ("'all' loops over a list or a map, not over string", 3),
    "s.all(i, x, true)": ("'all' loops over a list or a map, not over string", 3),
    "l.filter(x, x)": ("'filter' requires bool, not int", 13),
    "l.all(x, x)": ("'all' requires bool, not int", 10),
    "l.startsWith('a')": ("'startsWith' does not take (list, string)", 3),
    "o.?zzz.value()": ("the optional has no value: give a default with .orValue(…)", 8),
    "s.optMap(x, x)": ("'optMap' requires an optional, not string", 3),
    "dyn([s]).reverse().max() > 0": ("'max' does not take (list)", 20),
    "int('a' + 'b')": ("'ab' is not an int", 1),
    "s.matches('a' + '[')": ("'a[' is not a regular expression that RE2 accepts: missing ]: [", 3),
    "'%s'.format([b'\\xff'])": ("format does not take bytes that are not UTF-8", 6),
    "[?dyn(s)]": ("'?' requires an optional value, not string", 1),
    "{?'a': dyn(s)}": ("'?' requires an optional value, not string", 3),
    "{s: 1, s: 2}": ("the map has the key 'hello' twice", 8),
    "{dyn(1.5): 1}": ("a double cannot be the key of a map: keys are bool, int, uint or string", 2),
    "l.transformMapEntry(i, v, dyn(v))": ("'transformMapEntry' requires a map, not int", 27),
    "[dyn(1), dyn('a')].sort()": ("cannot sort: int and string have no common order", 20),
    "l.sortBy(x, dyn([x]))": ("'sort' does not take (list, list)", 3),
    "(0.0 / 0.0) < dyn(1.0)": ("NaN has no order", 13),
    "quantity(s)": ("'hello' is not a quantity: write a number with an optional suffix: 500m, 2, 1Gi, 1e3", 1),
    "quantity('1500m').asInteger()": ("the quantity is not a whole number of 64 bits: check isInteger() first", 19),
    "quantity('1') == dyn(s)": ("'==' does not take (kubernetes.Quantity, string)", 15),
    "semver(s)": ("'hello' is not a semantic version: write major.minor.patch, e.g. 1.2.3", 1),
    "ip(s)": ("'hello' is not an IP address", 1),
    "ip('::ffff:1.2.3.4')": ("'::ffff:1.2.3.4' is not an IP address: write IPv4 addresses without ::ffff:", 1),
    "cidr('10.0.0.0/33')": ("'10.0.0.0/33' is not a CIDR: write address/bits, e.g. 10.0.0.0/8", 1),
    "url(s)": ("'hello' is not a URL: it is neither absolute nor an absolute path", 1),
    "timestamp(0).getHours(s)": ("there is no time zone 'hello'", 14),
    "duration(s)": ("'hello' is not a duration: write e.g. 30s, 5m or 1h30m", 1),
    "s.matches(s + '(')": ("'hello(' is not a regular expression that RE2 accepts: missing ): hello(", 3),
    "s.charAt(9)": ("index out of range: 9 in a string of 5 characters", 3),
    "s.substring(3, 1)": ("a substring cannot start at 3 and end at 1", 3),
    "l.slice(0, 5)": ("cannot slice(0, 5): the list has 2 elements", 3),
    "l.slice(-1, 1)": ("cannot slice(-1, 1): indices are not negative", 3),
    "l.slice(2, 1)": ("cannot slice(2, 1): the start comes after the end", 3),
    "l.flatten(-1)": ("cannot flatten to a depth of -1: it is not negative", 3),
    "[].min()": ("'min' of an empty list", 4),
    "l.join(',')": ("'join' does not take (list, string)", 3),
    "optional.unwrap(l)": ("only optionals can be unwrapped, not a int", 10),
    "'%d'.format([s])": ("%d of format does not take a string", 6),
    "s.replace('hello', '%s').format([])": ("format has more clauses than arguments", 26),
    "s.replace('hello', '%q').format([1])": (
        "'%q' is not a clause of format: write %s, %d, %f, %e, %b, %x, %X or %o",
        26,
    ),
    r"string(bytes(s) + b'\xff')": ("the bytes are not UTF-8", 1),
    "cel.bind(x, l[9], x)": ("index out of bounds: 9 in a list of 2", 14),
}
DATA: dict[str, object] = {"o": {"a": {"b": 1}}, "l": [1, 2], "s": "hello", "n": None}


@pytest.mark.parametrize("source", FAILING)
def test_an_evaluation_that_fails_has_a_message_and_a_position(source: str) -> None:
    message, column = FAILING[source]
    with pytest.raises(CelRuntimeError) as caught:
        value(source, **DATA)
    assert caught.value.message == message
    assert (caught.value.line, caught.value.column) == (1, column)


def test_the_result_is_checked_when_it_is_compiled() -> None:
    with pytest.raises(CelTypeError, match="the expression returns int, but must return bool"):
        ENGINE.compile("1 + 1", {}, result=BOOL)


def test_a_dynamic_result_is_checked_when_it_is_evaluated() -> None:
    program = ENGINE.compile("object.a", {"object": DYN}, result=BOOL)
    assert program.evaluate({"object": {"a": True}}, Budget(frozen_clock)) is True
    with pytest.raises(CelRuntimeError, match="the expression returns int, but must return bool"):
        program.evaluate({"object": {"a": 1}}, Budget(frozen_clock))


def test_a_variable_without_a_value_is_named() -> None:
    program = ENGINE.compile("object.a", {"object": DYN})
    with pytest.raises(CelRuntimeError, match="no value is given for the variable 'object'"):
        program.evaluate({}, Budget(frozen_clock))


def test_lines_columns_and_the_excerpt_point_into_long_sources() -> None:
    source = "object.spec.containers.all(c,\n  has(c.image) &&\n\tc.image.startWith('example.com/'))"
    with pytest.raises(CelUnsupportedError) as caught:
        ENGINE.compile(source, VARIABLES)
    error = caught.value
    assert (error.line, error.column) == (3, 10)
    assert error.excerpt == " |  c.image.startWith('example.com/'))\n | .........^"
    assert str(error).endswith("Did you mean 'startsWith'? (line 3, column 10)")


def test_the_excerpt_of_a_long_line_shows_the_place() -> None:
    source = " || ".join(["true"] * 100) + " || zzz"
    with pytest.raises(CelTypeError) as caught:
        Cel(Limits(expression_bytes=4096)).compile(source, {})
    shown, caret = caught.value.excerpt.split("\n")
    assert len(shown) <= 103
    assert shown[caret.index("^")] == "z"
    assert CelError("no place").excerpt == ""
    assert str(CelError("no place")) == "no place"
