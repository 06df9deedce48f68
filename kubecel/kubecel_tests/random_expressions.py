"""Random CEL expressions about the Pod of `record_answers`, mostly of fitting types: `make cel-oracle`.

An expression is made from the type that it should have, by the signatures of all functions, operators and macros. Now
and then a part has another type, is hidden by `dyn()`, or is a constant that fails: there two implementations differ.
"""

import io
import random
from collections.abc import Callable
from typing import Final

from kubecel import types
from kubecel.checking import Overload
from kubecel.compile import LIBRARY
from kubecel.types import Type

KINDS: Final = ("bool", "int", "uint", "double", "string", "bytes", "duration", "timestamp", "list", "map", "optional")
_OPAQUE: Final[dict[str, tuple[Type, tuple[str, ...]]]] = {
    "ip": (types.IP, ("ip('10.0.0.1')", "ip('fe80::1')", "ip('x' + '')")),
    "cidr": (types.CIDR, ("cidr('10.0.0.0/8')", "cidr('2001:db8::/32')", "cidr('10.0.0.1/8')")),
    "url": (types.URL, ("url('https://u:p@example.com:80/a%20b?c=d&c=e')", "url('/a')", "url('x' + '')")),
    "semver": (types.SEMVER, ("semver('1.2.3')", "semver('1.2.3-rc.1+b')", "semver('v1.2', true)", "semver('1')")),
    "quantity": (types.QUANTITY, ("quantity('1Gi')", "quantity('1500m')", "quantity('-4')", "quantity('1e400')")),
    "format": (types.FORMAT, ("format.dns1123Label()", "format.uri()", "format.date()", "format.byte()")),
}
"""Kinds with their types and values."""
ELEMENTS: Final = ("int", "string", "bool", "double", "uint", "list", "optional", "duration", "null")
_KIND_OF: Final = {
    **{kind: kind for kind in KINDS},
    types.DURATION.name: "duration",
    types.TIMESTAMP.name: "timestamp",
    "optional_type": "optional",
    **{described.name: kind for kind, (described, _) in _OPAQUE.items()},
}
_OVERLOADS: Final = [
    overload
    for method in (False, True)
    for name in LIBRARY.names(method=method)
    for overload in LIBRARY.find(name, method=method)
    if name not in ("includes", "lists.range")
]
"""All signatures, except one that needs the feature gate DRAListTypeAttributes, and the one whose result has no bound:
an API server (1.36) has no memory left after `lists.range(9223372036854775807)`."""

LITERALS: Final[dict[str, tuple[str, ...]]] = {
    "null": ("null",),
    "bool": ("true", "false"),
    "int": ("0", "1", "2", "-1", "7", "30", "-7", "9223372036854775807", "-9223372036854775808"),
    "uint": ("0u", "1u", "2u", "18446744073709551615u"),
    "double": ("0.0", "1.0", "-1.5", "2.5", "1e300"),
    "string": (
        "''",
        "'a'",
        "'b'",
        "'ab'",
        "'1'",
        "'-7'",
        "'train'",
        "'1.5'",
        "'1h'",
        "'x,y,z'",
        "'ä€'",
        "'A b'",
        "'4'",
        "'10.0.0.1'",
        "'1.2.3'",
        "'2024-02-29T12:30:00Z'",
        "'America/New_York'",
    ),
    "bytes": ("b'a'", "b''", "b'\\xff'"),
    "duration": ("duration('1h')", "duration('0s')", "duration('-1.5s')"),
    "timestamp": ("timestamp('2024-02-29T12:30:00Z')", "timestamp(0)", "timestamp('1970-01-01T00:00:00+02:00')"),
    "type": tuple(types.NAMED),
    **{kind: values for kind, (_, values) in _OPAQUE.items()},
}
FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "null": ("oldObject",),
    "bool": ("object.spec.containers[0].securityContext.privileged", "has(object.spec.hostNetwork)"),
    "int": ("object.spec.terminationGracePeriodSeconds", "object.spec.containers[0].ports[0].containerPort"),
    "string": (
        *("object.metadata.name", "object.metadata.labels.app", "object.metadata.labels['team.example.com/name']"),
        *("object.spec.containers[0].image", "object.metadata.annotations.n", "object.metadata.labels.zero"),
        *("object.spec.containers[0].resources.limits['aws.amazon.com/neuron']", "object.spec.containers[1].name"),
    ),
    "list": ("object.spec.containers", "object.spec.containers[0].args", "object.spec.containers[0].env"),
    "map": ("object.metadata.labels", "object.spec.nodeSelector", "object.spec.containers[0].resources.limits"),
    "optional": ("object.metadata.?labels", "object.?nothing", "object.metadata.labels[?'app']", "object.?spec.?none"),
}
MISSING: Final = ("object.metadata.labels.none", "object.spec.containers[9]", "object.metadata.name.x", "oldObject.a")
"""Lookups that fail."""
FAILING: Final = (
    *("int('a' + '1x')", "'a'.matches('a' + '[')", "duration('x' + '')", "1 / 0", "[1][1]", "{'a': 1}.b", "[].max()"),
    *("timestamp('x'.trim())", "quantity('x' + 'y')", "'a'.charAt(9)", "optional.none().value()", "1 % 0", "uint(-1)"),
    *("-(-9223372036854775808)", "9223372036854775807 + 1", "0u - 1u", "int(1e300)", "bytes('a').size() / 0"),
)
"""Constants that fail: some are refused, the others fail when they are evaluated."""
PATTERNS: Final = ("'^[a-z]+$'", "'a|b'", "'[0-9]{1,3}'", "'('", "'^' + 'a'", "object.metadata.name")
VARIABLES: Final = ("x", "y", "z")


class Numbers(random.Random):
    """Random numbers from bytes, for a fuzzer; zeros after the last byte."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self._data = io.BytesIO(data)

    def random(self) -> float:
        """A number from two bytes."""
        return self.getrandbits(16) / 2**16

    def getrandbits(self, k: int, /) -> int:
        """A number from as few bytes as have `k` bits."""
        return int.from_bytes(self._data.read((k + 7) // 8), "big") % 2**k


class Generator:
    """Makes expressions; the same seed, or the same random numbers, make the same ones."""

    def __init__(self, seed: int | random.Random) -> None:
        self._random = seed if isinstance(seed, random.Random) else random.Random(seed)  # noqa: S311 - not for secrets
        self._scope: list[tuple[str, str]] = []
        self._makers: dict[str, tuple[Callable[[int], str], ...]] = {
            "null": (lambda _: "null",),
            "type": (self._call("type({})", "int"),),
            "bool": self._bools(),
            "int": self._ints(),
            "uint": (self._arithmetic("uint", "+-*/%"), self._choice("uint")),
            "double": (self._arithmetic("double", "+-*/"), self._choice("double")),
            "string": self._strings(),
            "bytes": (self._arithmetic("bytes", "+"), self._choice("bytes")),
            "duration": self._durations(),
            "timestamp": self._timestamps(),
            "list": self._lists(),
            "map": self._maps(),
            "optional": self._optionals(),
            **dict.fromkeys(_OPAQUE, ()),
        }
        self._functions: dict[str, list[Overload]] = {}
        for overload in _OVERLOADS:
            self._functions.setdefault(_KIND_OF.get(overload.result.name, ""), []).append(overload)

    def expressions(self, count: int) -> list[str]:
        """So many different expressions, of at most 300 characters each."""
        found: dict[str, None] = {}
        while len(found) < count:
            made = self.one()
            if len(made) <= 300:
                found[made] = None
        return list(found)

    def one(self) -> str:
        """An expression."""
        kind = self._random.choice((*KINDS, *KINDS, *_OPAQUE))
        made = self.of(kind, self._random.randint(1, 4))
        if kind == "optional" and self._random.random() < 0.5:
            # The API server does not write optionals into a message.
            return f"[{made}].map(o, o.hasValue() ? [o.value()] : [])"
        return made

    def of(self, kind: str, depth: int) -> str:
        """An expression of this type with at most so many levels."""
        dice = self._random.random()
        if dice < 0.02:
            return self._random.choice((*MISSING, *FAILING))
        if dice < 0.05:
            kind = self._random.choice(KINDS)
        known = [name for name, its in self._scope if its in (kind, "dyn")]
        if known and self._random.random() < 0.3:
            return self._random.choice(known)
        if depth <= 0:
            return self._leaf(kind)
        makers = self._makers[kind]
        functions = self._functions.get(kind)
        if functions and (not makers or self._random.random() < 0.4):
            made = self._called(self._random.choice(functions), depth - 1)
        else:
            made = self._random.choice(makers)(depth - 1)
        return f"dyn({made})" if self._random.random() < 0.06 else made

    def _called(self, overload: Overload, depth: int) -> str:
        """A call of a function, with arguments of its signature."""
        arguments = [self._of_type(described, depth) for described in overload.parameters]
        receiver = f"{arguments.pop(0)}." if overload.method else ""
        return f"{receiver}{overload.name}({', '.join(arguments)})"

    def _of_type(self, described: Type, depth: int) -> str:
        if described.name == "list" and not types.is_open(described.parameters[0]) and self._random.random() < 0.5:
            items = [self._of_type(described.parameters[0], depth - 1) for _ in range(self._random.randint(0, 3))]
            return f"[{', '.join(items)}]"
        return self.of(_KIND_OF.get(described.name) or self._random.choice(ELEMENTS), depth)

    def _leaf(self, kind: str) -> str:
        if kind in ("list", "map", "optional"):
            if self._random.random() < 0.5:
                return self._random.choice(FIELDS[kind])
            one = self._leaf(self._random.choice(("int", "string", "bool")))
            return {"list": f"[{one}]", "map": f"{{'k': {one}}}", "optional": f"optional.of({one})"}[kind]
        return self._random.choice((*LITERALS[kind], *FIELDS.get(kind, ())))

    # --- forms that several types have --------------------------------------------------------------------

    def _call(self, form: str, *kinds: str) -> Callable[[int], str]:
        return lambda depth: form.format(*(self.of(kind, depth) for kind in kinds))

    def _arithmetic(self, kind: str, operators: str) -> Callable[[int], str]:
        def make(depth: int) -> str:
            return f"({self.of(kind, depth)} {self._random.choice(operators)} {self.of(kind, depth)})"

        return make

    def _choice(self, kind: str) -> Callable[[int], str]:
        return lambda depth: f"({self.of('bool', depth)} ? {self.of(kind, depth)} : {self.of(kind, depth)})"

    def _default(self, kind: str) -> Callable[[int], str]:
        def make(depth: int) -> str:
            inner = self._random.choice(FIELDS["optional"][1:]) if depth < 1 else self._optional_of(kind, depth)
            return f"{inner}.orValue({self.of(kind, depth)})"

        return make

    def _bound(self, kind: str, form: str, *kinds: str, variables: tuple[str, ...] = ("dyn",)) -> Callable[[int], str]:
        """A macro: `form` has the operands, then `{v}`, `{w}` for its variables and `{body}`."""

        def make(depth: int) -> str:
            operands = [self.of(each, depth) for each in kinds]
            names = self._random.sample(VARIABLES, len(variables))
            self._scope.extend(zip(names, variables, strict=True))
            body = self.of(kind, depth)
            extra = self.of("bool", depth - 1) if "{test}" in form else ""
            del self._scope[-len(names) :]
            return form.format(*operands, v=names[0], w=names[-1], body=body, test=extra)

        return make

    # --- scalars ------------------------------------------------------------------------------------------

    def _bools(self) -> tuple[Callable[[int], str], ...]:
        def compared(depth: int) -> str:
            kind = self._random.choice(("int", "string", "double", "duration", "timestamp", "uint", "bool", "bytes"))
            other = self._random.choice(("int", "uint", "double")) if kind in ("int", "uint", "double") else kind
            operator = self._random.choice(("<", "<=", ">", ">="))
            return f"{self.of(kind, depth)} {operator} {self.of(other, depth)}"

        def equal(depth: int) -> str:
            kind = self._random.choice((*KINDS, "null"))
            return f"{self.of(kind, depth)} {self._random.choice(('==', '!='))} {self.of(kind, depth)}"

        def logic(depth: int) -> str:
            operator = self._random.choice((" && ", " || "))
            return f"({operator.join(self.of('bool', depth) for _ in range(self._random.randint(2, 3)))})"

        def within(depth: int) -> str:
            kind = self._random.choice(("int", "string"))
            items = ", ".join(self.of(kind, depth - 1) for _ in range(self._random.randint(0, 3)))
            return f"{self.of(kind, depth)} in [{items}]"

        def matches(depth: int) -> str:
            form = self._random.choice(("{}.matches({})", "matches({}, {})"))
            return form.format(self.of("string", depth), self._random.choice(PATTERNS))

        return (
            *(compared, equal, logic, within, matches),
            self._call("!({})", "bool"),
            self._call("{} in {}", "string", "map"),
            self._call("{} in {}", "string", "list"),
            self._call("type({}) == {}", "int", "type"),
            self._choice("bool"),
            self._default("bool"),
            *(self._bound("bool", f"{{}}.{name}({{v}}, {{body}})", "list") for name in ("all", "exists", "exists_one")),
            self._bound("bool", "{}.all({v}, {body})", "map", variables=("string",)),
            self._bound("bool", "{}.exists({v}, {w}, {body})", "list", variables=("int", "dyn")),
            self._bound("bool", "{}.all({v}, {w}, {body})", "map", variables=("string", "dyn")),
        )

    def _ints(self) -> tuple[Callable[[int], str], ...]:
        return (
            *(self._arithmetic("int", "+-*/%"), self._arithmetic("int", "+-*")),
            self._call("-({})", "int"),
            self._call("[{}, {}][{}]", "int", "int", "int"),
            self._choice("int"),
            self._default("int"),
        )

    def _strings(self) -> tuple[Callable[[int], str], ...]:
        return (
            self._arithmetic("string", "+"),
            self._call("'%s-%s'.format([{}, {}])", "string", "list"),
            self._call("'%d'.format([{}])", "int"),
            self._call("{}[{}]", "map", "string"),
            self._choice("string"),
            self._default("string"),
        )

    def _durations(self) -> tuple[Callable[[int], str], ...]:
        return (
            self._arithmetic("duration", "+-"),
            self._call("({} - {})", "timestamp", "timestamp"),
            self._choice("duration"),
        )

    def _timestamps(self) -> tuple[Callable[[int], str], ...]:
        return (
            self._call("({} + {})", "timestamp", "duration"),
            self._call("({} - {})", "timestamp", "duration"),
            self._choice("timestamp"),
        )

    # --- lists, maps, optionals ---------------------------------------------------------------------------

    def _element(self, kind: str, depth: int) -> str:
        return f"?{self._optional_of(kind, depth)}" if self._random.random() < 0.12 else self.of(kind, depth)

    def _optional_of(self, kind: str, depth: int) -> str:
        form = self._random.choice(("optional.of({})", "optional.of({})", "optional.ofNonZeroValue({})", "[{}][?0]"))
        if self._random.random() < 0.25:
            return self.of("optional", depth - 1)
        return form.format(self.of(kind, depth - 1))

    def _lists(self) -> tuple[Callable[[int], str], ...]:
        def literal(depth: int) -> str:
            kind = self._random.choice(ELEMENTS)
            return f"[{', '.join(self._element(kind, depth) for _ in range(self._random.randint(0, 3)))}]"

        return (
            *(literal, literal),
            self._arithmetic("list", "+"),
            self._bound("bool", "{}.filter({v}, {body})", "list"),
            *(self._bound(kind, "{}.map({v}, {body})", "list") for kind in ("int", "string", "list", "optional")),
            self._bound("string", "{}.map({v}, {test}, {body})", "list"),
            self._bound("string", "{}.map({v}, {body})", "map", variables=("string",)),
            self._bound("int", "{}.transformList({v}, {w}, {body})", "list", variables=("int", "dyn")),
            self._bound("int", "{}.sortBy({v}, {body})", "list"),
            self._call("lists.range(size({}))", "string"),
            self._choice("list"),
            self._default("list"),
        )

    def _maps(self) -> tuple[Callable[[int], str], ...]:
        def literal(depth: int) -> str:
            key, kind = self._random.choice(("string", "int", "bool")), self._random.choice(ELEMENTS)
            entries = []
            for _ in range(self._random.randint(0, 2)):
                mark = self._random.random() < 0.12
                value = self._optional_of(kind, depth) if mark else self.of(kind, depth)
                entries.append(f"{'?' * mark}{self.of(key, depth - 1)}: {value}")
            return f"{{{', '.join(entries)}}}"

        return (
            *(literal, literal),
            self._bound("int", "{}.transformMap({v}, {w}, {body})", "map", variables=("string", "dyn")),
            self._bound("int", "{}.transformMap({v}, {w}, {body})", "list", variables=("int", "dyn")),
            self._bound("map", "{}.transformMapEntry({v}, {w}, {body})", "list", variables=("int", "dyn")),
            self._choice("map"),
            self._default("map"),
        )

    def _optionals(self) -> tuple[Callable[[int], str], ...]:
        def of(depth: int) -> str:
            return f"optional.of({self.of(self._random.choice((*ELEMENTS, 'map')), depth)})"

        def mapped(name: str, kinds: tuple[str, ...]) -> Callable[[int], str]:
            def make(depth: int) -> str:
                kind = self._random.choice(kinds)
                return self._bound(kind, f"{{}}.{name}({{v}}, {{body}})", "optional")(depth)

            return make

        return (
            of,
            self._call("{}[?{}]", "list", "int"),
            self._call("{}[?{}]", "map", "string"),
            self._call("{}.?app", "map"),
            self._call("{}.?app", "optional"),
            self._call("{}[?{}]", "optional", "string"),
            self._call("{}.or({})", "optional", "optional"),
            mapped("optMap", ("string", "int", "optional", "list", "null")),
            mapped("optFlatMap", ("optional", "optional", "null")),
            self._choice("optional"),
        )
