"""Errors of expressions: message, position and excerpt."""

import pytest

from kubecel.budget import Budget, Limits
from kubecel.compile import Cel
from kubecel.errors import CelError, CelRuntimeError, CelSyntaxError, CelTypeError, CelUnsupportedError
from kubecel.types import BOOL, DYN, INT, STRING, list_of, record
from kubecel_tests.evaluating import ENGINE, frozen_clock, value

NEURON = record("neuron", {"devices": INT, "cores": INT, "requests": list_of(DYN)})
VARIABLES = {"object": DYN, "neuron": NEURON, "name": STRING}

REFUSED = {
    "unexpected token": ("1 + )", CelSyntaxError, "unexpected ')'", 5),
    "too early an end": ("1 +", CelSyntaxError, "the expression ends too early", 4),
    "empty": ("", CelSyntaxError, "the expression ends too early", 1),
    "foreign character": ("a # b", CelSyntaxError, "unexpected '#'", 3),
    "open string": ("'abc", CelSyntaxError, "a string does not end, or contains an unknown escape", 1),
    "unknown escape": (r"'a\qb'", CelSyntaxError, "a string does not end, or contains an unknown escape", 1),
    "impossible character": (r"'\ud800'", CelSyntaxError, r"\ud800 is not a character", 1),
    "character in bytes": (r"b'\u0041'", CelSyntaxError, r"\u0041 is not allowed in bytes: write \x", 1),
    "half a pair in bytes": (
        "b'a\ud800'",
        CelSyntaxError,
        "a literal with half a surrogate pair has no UTF-8 bytes",
        1,
    ),
    "backquotes": (
        "object.`a`",
        CelSyntaxError,
        "fields in backquotes are not supported: write map['a.b']",
        8,
    ),
    "reserved word": ("package", CelSyntaxError, "'package' is a reserved word", 1),
    "reserved field": ("object.in", CelSyntaxError, "'in' is a reserved word: write ['in']", 8),
    "int out of range": ("9223372036854775808", CelSyntaxError, "9223372036854775808 is out of range for an int", 1),
    "has of no field": ("has(object)", CelSyntaxError, "'has' requires a field, such as has(object.metadata)", 5),
    "macro without variable": (
        "[1].all(1, true)",
        CelSyntaxError,
        "'all' requires the name of a variable here",
        9,
    ),
    "macro with one name twice": (
        "[1].all(x, x, true)",
        CelSyntaxError,
        "'all' has two variables named 'x'",
        12,
    ),
    "object": (
        "Pod{a: 1}",
        CelUnsupportedError,
        "there is no type 'Pod' of which an object can be made here: write a map",
        4,
    ),
    "object of a call": ("size('a'){a: 1}", CelSyntaxError, "the name of a type must stand before '{'", 10),
    "unknown function": ("math.greatest(1, 2)", CelUnsupportedError, "there is no function 'math.greatest' here.", 6),
    "misspelt method": (
        "name.startWith('a')",
        CelUnsupportedError,
        "there is no method 'startWith' here. Did you mean 'startsWith'?",
        6,
    ),
    "misspelt function": (
        "isQuantiti(name)",
        CelUnsupportedError,
        "there is no function 'isQuantiti' here. Did you mean 'isQuantity'?",
        1,
    ),
    "method called as a function": (
        "startsWith(name, 'a')",
        CelUnsupportedError,
        "'startsWith' is a method: write value.startsWith(…)",
        1,
    ),
    "misspelt variable": ("objekt.kind", CelTypeError, "there is no variable 'objekt'. Did you mean 'object'?", 1),
    "unknown variable": (
        "zzz",
        CelTypeError,
        "there is no variable 'zzz'. Known here: name, neuron, object.",
        1,
    ),
    "misspelt field": ("neuron.device", CelTypeError, "'neuron' has no field 'device'. Did you mean 'devices'?", 8),
    "unknown field": (
        "neuron.zzz",
        CelTypeError,
        "'neuron' has no field 'zzz'. It has cores, devices, requests.",
        8,
    ),
    "unknown field in has": (
        "has(neuron.core)",
        CelTypeError,
        "'neuron' has no field 'core'. Did you mean 'cores'?",
        12,
    ),
    "unknown field in brackets": (
        "neuron['device']",
        CelTypeError,
        "'neuron' has no field 'device'. Did you mean 'devices'?",
        7,
    ),
    "operands of two types": ("1 + 'a'", CelTypeError, "'+' does not take (int, string)", 3),
    "comparison of two types": ("neuron.devices == '4'", CelTypeError, "'==' does not take (int, string)", 16),
    "order of two types": ("name < 4", CelTypeError, "'<' does not take (string, int)", 6),
    "membership in no list": ("4 in neuron.devices", CelTypeError, "'in' does not take (int, int)", 3),
    "negative string": ("-name", CelTypeError, "'-' does not take (string)", 1),
    "not a number": ("!neuron.devices", CelTypeError, "'!' requires bool, not int", 9),
    "and of an int": ("true && neuron.devices", CelTypeError, "'&&' requires bool, not int", 16),
    "choice by an int": ("1 ? 2 : 3", CelTypeError, "'? :' requires bool, not int", 1),
    "choice of two types": (
        "true ? 1 : 'a'",
        CelTypeError,
        "both sides of ':' must have the same type, not int and string",
        6,
    ),
    "mixed list": (
        "[1, 'a']",
        CelTypeError,
        "all elements of a literal must have the same type: expected int, found string; wrap each in dyn() to mix",
        5,
    ),
    "mixed map": (
        "{'a': 1, 'b': object}",
        CelTypeError,
        "all values of a literal must have the same type: expected int, found dyn; wrap each in dyn() to mix",
        15,
    ),
    "index of a type without keys": (
        "object[duration('1h')]",
        CelTypeError,
        "a value cannot be indexed by google.protobuf.Duration",
        8,
    ),
    "clause for another type": ("'%d'.format([['a'].max()])", CelTypeError, "%d of format does not take a string", 20),
    "clause for a part": (
        "'%s'.format([[optional.of(1)]])",
        CelTypeError,
        "%s of format does not take a optional_type",
        24,
    ),
    "optional element of another type": (
        "[1, ?optional.of(name)]",
        CelTypeError,
        "all elements of a literal must have the same type: expected int, found string; wrap each in dyn() to mix",
        15,
    ),
    "field of an optional inside an optional": (
        "optional.of(optional.of(name)).?a",
        CelTypeError,
        "a value of type optional_type(optional_type(string)) cannot have fields",
        33,
    ),
    "sortBy of a map": ("{'a': 1}.sortBy(x, x)", CelTypeError, "'sortBy' sorts a list, not map(string, int)", 10),
    "duration of a number": ("duration(1)", CelTypeError, "duration() takes a text such as '30s', not 1", 1),
    "optional element that is none": ("[?1]", CelTypeError, "'?' requires an optional value, not int", 3),
    "fields of a string": ("name.x", CelTypeError, "a value of type string cannot have fields", 6),
    "index of a string": ("name[0]", CelTypeError, "a value of type string cannot be indexed", 5),
    "index of a list": (
        "neuron.requests['a']",
        CelTypeError,
        "a list(dyn) is indexed by int, not by string",
        17,
    ),
    "argument of a method": ("name.startsWith(1)", CelTypeError, "'startsWith' does not take string.(int)", 6),
    "argument of a function": ("size(1)", CelTypeError, "'size' does not take (int)", 1),
    "loop over an int": (
        "neuron.devices.all(d, true)",
        CelTypeError,
        "'all' loops over a list or a map, not over int",
        16,
    ),
    "condition of a loop": ("[1].all(x, x)", CelTypeError, "'all' requires bool, not int", 12),
    "sorting by lists": ("[[1]].sortBy(x, x)", CelTypeError, "'sortBy' cannot order by list(int)", 17),
    "entry that is no map": (
        "[1].transformMapEntry(i, v, 1)",
        CelTypeError,
        "'transformMapEntry' requires a map, not int",
        29,
    ),
    "optMap of no optional": ("name.optMap(x, x)", CelTypeError, "'optMap' requires an optional, not string", 6),
    "optFlatMap to no optional": (
        "object.?a.optFlatMap(x, 1)",
        CelTypeError,
        "'optFlatMap' requires an expression that returns an optional, not int",
        25,
    ),
    "orValue of no optional": ("name.orValue('a')", CelTypeError, "'orValue' requires an optional, not string", 6),
    "orValue of another type": (
        "optional.of(1).orValue('a')",
        CelTypeError,
        "'orValue' of an optional_type(int) does not take (string)",
        16,
    ),
    "regular expression": (
        "name.matches('a(')",
        CelTypeError,
        "'a(' is not a regular expression that RE2 accepts: missing ): a(",
        6,
    ),
    "constant duration": (
        "duration('1d') < duration('2s')",
        CelTypeError,
        "'1d' is not a duration: write e.g. 30s, 5m or 1h30m",
        1,
    ),
    "constant timestamp": (
        "timestamp('yesterday')",
        CelTypeError,
        "'yesterday' is not a timestamp: write RFC 3339, e.g. 2026-01-31T12:00:00Z",
        1,
    ),
    "constant int": ("int('four')", CelTypeError, "'four' is not an int", 1),
    "clauses of format": ("'%s %s'.format([name])", CelTypeError, "format has 2 clauses and 1 values", 9),
}


@pytest.mark.parametrize(("source", "kind", "message", "column"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_expression_is_a_compile_error(source: str, kind: type[CelError], message: str, column: int) -> None:
    with pytest.raises(kind) as caught:
        ENGINE.compile(source, VARIABLES)
    assert caught.value.message == message
    assert (caught.value.line, caught.value.column) == (1, column)


FAILING = {
    "missing key": ("o.a.zzz", "no such key: 'zzz'", 5),
    "missing key on the way": ("o.zzz.a.b", "no such key: 'zzz'", 3),
    "missing key by index": ("o['a']['zzz']", "no such key: 'zzz'", 7),
    "missing key by number": ("o[4]", "no such key: 4", 2),
    "field of a number": ("o.a.b.c", "no such key: 'c': a int has no keys", 7),
    "index out of bounds": ("l[5]", "index out of bounds: 5 in a list of 2", 2),
    "negative index": ("l[-1]", "index out of bounds: -1 in a list of 2", 2),
    "index by name": ("l['a']", "a list is indexed by int, not by string", 2),
    "null as a key": ("o[n]", "a null_type cannot be the key of a map: keys are bool, int, uint or string", 2),
    "dynamic operands": ("l[0] + s", "'+' does not take (int, string)", 6),
    "dynamic order": ("l < l", "'<' does not take (list, list)", 3),
    "overflow": (
        "9223372036854775807 + l[0]",
        "integer overflow in '+': 9223372036854775808 does not fit 64 bits",
        21,
    ),
    "unsigned overflow": ("1u - dyn(2u)", "unsigned integer overflow in '-': -1 does not fit 64 bits", 4),
    "division": ("l[0] / (l[0] - 1)", "division by zero", 6),
    "modulus": ("l[0] % (l[0] - 1)", "modulus by zero", 6),
    "negation": ("-s", "'-' does not take (string)", 1),
    "inversion": ("!s", "'!' requires bool, not string", 1),
    "logic": ("true && s", "'&&' requires bool, not string", 6),
    "choice": ("s ? 1 : 2", "'? :' requires bool, not string", 3),
    "membership": ("1 in s", "'in' does not take (int, string)", 3),
    "membership in an optional": (
        "'a' in dyn(o.?a)",
        "'in' requires a list or a map, not an optional: use .orValue([]) first",
        5,
    ),
    "loop": ("s.all(x, true)", "'all' loops over a list or a map, not over string", 3),
    "loop with two variables": ("s.all(i, x, true)", "'all' loops over a list or a map, not over string", 3),
    "condition": ("l.filter(x, x)", "'filter' requires bool, not int", 13),
    "condition of all": ("l.all(x, x)", "'all' requires bool, not int", 10),
    "method of another type": ("l.startsWith('a')", "'startsWith' does not take (list, string)", 3),
    "empty optional": (
        "o.?zzz.value()",
        "the optional has no value: give a default with .orValue(…)",
        8,
    ),
    "optMap": ("s.optMap(x, x)", "'optMap' requires an optional, not string", 3),
    "sort of unknown elements": ("dyn([s]).reverse().max() > 0", "'max' does not take (list)", 20),
    "constant that is no literal": ("int('a' + 'b')", "'ab' is not an int", 1),
    "pattern that is no literal": (
        "s.matches('a' + '[')",
        "'a[' is not a regular expression that RE2 accepts: missing ]: [",
        3,
    ),
    "bytes in format": ("'%s'.format([b'\\xff'])", "format does not take bytes that are not UTF-8", 6),
    "optional element": ("[?dyn(s)]", "'?' requires an optional value, not string", 1),
    "optional entry": ("{?'a': dyn(s)}", "'?' requires an optional value, not string", 3),
    "repeated key": ("{s: 1, s: 2}", "the map has the key 'hello' twice", 8),
    "double as a key": (
        "{dyn(1.5): 1}",
        "a double cannot be the key of a map: keys are bool, int, uint or string",
        2,
    ),
    "entry": (
        "l.transformMapEntry(i, v, dyn(v))",
        "'transformMapEntry' requires a map, not int",
        27,
    ),
    "sort": ("[dyn(1), dyn('a')].sort()", "cannot sort: int and string have no common order", 20),
    "sort by": ("l.sortBy(x, dyn([x]))", "'sort' does not take (list, list)", 3),
    "order of NaN": ("(0.0 / 0.0) < dyn(1.0)", "NaN has no order", 13),
    "quantity": (
        "quantity(s)",
        "'hello' is not a quantity: write a number with an optional suffix: 500m, 2, 1Gi, 1e3",
        1,
    ),
    "quantity that is no integer": (
        "quantity('1500m').asInteger()",
        "the quantity is not a whole number of 64 bits: check isInteger() first",
        19,
    ),
    "quantity and string": ("quantity('1') == dyn(s)", "'==' does not take (kubernetes.Quantity, string)", 15),
    "version": ("semver(s)", "'hello' is not a semantic version: write major.minor.patch, e.g. 1.2.3", 1),
    "address": ("ip(s)", "'hello' is not an IP address", 1),
    "mapped address": (
        "ip('::ffff:1.2.3.4')",
        "'::ffff:1.2.3.4' is not an IP address: write IPv4 addresses without ::ffff:",
        1,
    ),
    "network": ("cidr('10.0.0.0/33')", "'10.0.0.0/33' is not a CIDR: write address/bits, e.g. 10.0.0.0/8", 1),
    "url": ("url(s)", "'hello' is not a URL: it is neither absolute nor an absolute path", 1),
    "time zone": ("timestamp(0).getHours(s)", "there is no time zone 'hello'", 14),
    "dynamic duration": ("duration(s)", "'hello' is not a duration: write e.g. 30s, 5m or 1h30m", 1),
    "dynamic pattern": (
        "s.matches(s + '(')",
        "'hello(' is not a regular expression that RE2 accepts: missing ): hello(",
        3,
    ),
    "position in a string": ("s.charAt(9)", "index out of range: 9 in a string of 5 characters", 3),
    "substring": ("s.substring(3, 1)", "a substring cannot start at 3 and end at 1", 3),
    "slice": ("l.slice(0, 5)", "cannot slice(0, 5): the list has 2 elements", 3),
    "negative slice": ("l.slice(-1, 1)", "cannot slice(-1, 1): indices are not negative", 3),
    "reversed slice": ("l.slice(2, 1)", "cannot slice(2, 1): the start comes after the end", 3),
    "flatten": ("l.flatten(-1)", "cannot flatten to a depth of -1: it is not negative", 3),
    "minimum": ("[].min()", "'min' of an empty list", 4),
    "join": ("l.join(',')", "'join' does not take (list, string)", 3),
    "unwrap": ("optional.unwrap(l)", "only optionals can be unwrapped, not a int", 10),
    "format of another type": ("'%d'.format([s])", "%d of format does not take a string", 6),
    "format without arguments": ("s.replace('hello', '%s').format([])", "format has more clauses than arguments", 26),
    "unknown clause": (
        "s.replace('hello', '%q').format([1])",
        "'%q' is not a clause of format: write %s, %d, %f, %e, %b, %x, %X or %o",
        26,
    ),
    "bytes that are no text": (r"string(bytes(s) + b'\xff')", "the bytes are not UTF-8", 1),
    "bound value": ("cel.bind(x, l[9], x)", "index out of bounds: 9 in a list of 2", 14),
}
DATA: dict[str, object] = {"o": {"a": {"b": 1}}, "l": [1, 2], "s": "hello", "n": None}


@pytest.mark.parametrize(("source", "message", "column"), FAILING.values(), ids=FAILING)
def test_an_evaluation_that_fails_has_a_message_and_a_position(source: str, message: str, column: int) -> None:
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
