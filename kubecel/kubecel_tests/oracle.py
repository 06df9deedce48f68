"""`make cel-oracle`: random expressions in a real API server and in kubecel; a difference that is not documented fails.

    python -m kubecel_tests.oracle --count 5000 --seed 1
    python -m kubecel_tests.oracle --count 0 --corpus DIR

`--corpus` is a folder that `python -m tests.fuzz cel-random --corpus DIR` filled: each input reaches other code. Every
input on which a target once failed (`tests/fuzz/found`) is compared, too.

Every expression is a variable of a ValidatingAdmissionPolicy. A dry run of the policy tells if the server accepts it.
The denial of a Pod tells type and value. Costs are compared at the limit of one expression: with padding that makes it
cost exactly the limit by kubecel's count, the server has to allow it; with one more, it has to refuse it.
"""

import argparse
import dataclasses
import json
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import httpx

from kubecel.budget import Budget
from kubecel.compile import LIBRARY, parse
from kubecel.errors import CelCompileError, CelError
from kubecel.syntax import nodes as syntax
from kubecel.types import DYN
from kubecel.values import kind_of
from kubecel_tests import record_answers
from kubecel_tests.evaluating import ENGINE, frozen_clock
from kubecel_tests.random_expressions import Generator, Numbers
from kubecel_tests.record_answers import BINARIES, BINDINGS, POD, PODS, POLICIES, api_server

FOUND: Final = Path(__file__).parents[2] / "tests/fuzz/found"
LIMIT: Final = 1_000_000
"""Cost of one expression in Kubernetes."""
CONSTANT: Final = (
    "[1, 2, 3].sum() == 6",
    "[1, 2, 3].exists(x, x == 2)",
    "[[1], [2]].map(x, x)",
    "{'a': 1, 'b': 2}.size() == 2",
    "3 in [1, 2, 3]",
    "'abc'.matches('^a.*')",
    "'a,b'.split(',') == ['a', 'b']",
    "duration('1h') > duration('1s')",
    "timestamp('2026-01-01T00:00:00Z') < timestamp('2027-01-01T00:00:00Z')",
    "quantity('1Gi').isGreaterThan(quantity('1Mi'))",
    "ip('10.0.0.1').family() == 4",
    "cidr('10.0.0.0/8').containsIP('10.0.0.1')",
    "semver('1.2.3').major() == 1",
    "url('https://a.example/b').getHost() == 'a'",
    "format.named('dns1123Label').value().validate('my-name').hasValue()",
    "format.named('dns1123Subdomain').hasValue()",
    "format.dns1123Label().validate('my-name').hasValue()",
)
"""Expressions of constants. The API server computes some constant parts once, before the evaluation is charged
(OptOptimize in apiserver/pkg/cel/environment/base.go); the tables of costs in its tests are made without that."""
_TOGETHER: Final = 8
"""Expressions of one policy. The server computes the messages of all of them for each request that it matches."""
_CHUNK: Final = 200
_AGAIN: Final = 5
"""How often an expression is asked alone if its answer differs."""
_LONGEST_RANGE: Final = 98_000
"""A list of more than 100,000 elements is refused here."""
_SERVERS: Final = ("etcd", "kube-apiserver")
_TOO_COSTLY: Final = "cost limit exceeded"


@dataclasses.dataclass(frozen=True)
class Answer:
    """The result of an expression: `value` with its type, `error`, `refused`, or `broke` if the server broke off.

    Attributes:
        text: the value as the server writes it, `?` if `format` does not take it; else the message.
    """

    kind: str
    type: str = ""
    text: str = ""


@dataclasses.dataclass(frozen=True)
class Difference:
    """An expression with two answers; `known` is the class of the documented difference, or empty."""

    expression: str
    ours: Answer
    theirs: Answer
    known: str

    def __str__(self) -> str:
        return f"{self.expression}\n    here:   {_shown(self.ours)}\n    server: {_shown(self.theirs)}"


def _shown(answer: Answer) -> str:
    return f"{answer.kind} {answer.type} {answer.text}".replace("\n", " ")[:240]


# --- here -------------------------------------------------------------------------------------------------


def ours(expression: str, pod: dict[str, Any]) -> Answer:
    """The answer of kubecel."""
    values = {"object": pod, "oldObject": None}
    try:
        program = ENGINE.compile(expression, dict.fromkeys(values, DYN))
    except CelCompileError as error:
        return Answer("refused", text=str(error))
    except CelError as error:
        return Answer("error", text=str(error))
    try:
        value = program.evaluate(values, Budget(frozen_clock))
    except CelError as error:
        return Answer("error", text=str(error))
    (write,) = LIBRARY.find("format", method=True)
    try:
        text = str(write.call(Budget(frozen_clock), "%s", [value]))
    except CelError:
        text = "?"
    return Answer("value", kind_of(value).name, text)


def _padded(expression: str, lists: int, more: int) -> str:
    """The expression and, without constants, lists that cost one for each element."""
    zero = "int(object.metadata.annotations.n) * 0"
    sizes = [*[_LONGEST_RANGE] * lists, more]
    return f"size([dyn({expression})]) > 0" + "".join(f" && lists.range({zero} + {n}).size() >= 0" for n in sizes)


def at_the_limit(expression: str, pod: dict[str, Any]) -> tuple[str, str] | None:
    """Two expressions: one costs exactly the limit by kubecel's count, the next one more. None if it costs too much."""

    def cost(lists: int) -> int:
        values = {"object": pod, "oldObject": None}
        budget = Budget(frozen_clock)
        program = ENGINE.compile(_padded(expression, lists, 0), dict.fromkeys(values, DYN))
        program.evaluate(values, budget)
        return budget.spent

    first = cost(0)
    lists, more = divmod(LIMIT - first, cost(1) - first)
    if first > LIMIT or more > _LONGEST_RANGE:
        return None
    return _padded(expression, lists, more), _padded(expression, lists, more + 1)


# --- the API server ---------------------------------------------------------------------------------------


def _policy(name: str, expressions: Sequence[tuple[str, str]], *, shows: bool) -> dict[str, Any]:
    """A policy that denies a Pod of the field manager `<policy>.x` with the value of the expression `x`.

    It denies a Pod of `<policy>.probe` without computing any of them.
    """
    manager = "request.options.fieldManager"
    validations = [
        {
            "expression": f"{manager} != '{name}.{each}' || dyn(type(variables.{each})) == dyn('none')",
            **(record_answers.shown(text) if shows else {}),
        }
        for each, text in expressions
    ]
    validations.append({"expression": f"{manager} != '{name}.probe'"})
    return record_answers.policy(name, f"{manager}.startsWith('{name}.')", dict(expressions), validations)


class Server:
    """A real API server."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        response = client.post(PODS, params={"dryRun": "All"}, json=POD)
        response.raise_for_status()
        self.pod: dict[str, Any] = response.json()
        self.version = str(client.get("/version").json()["gitVersion"])

    def answers(self, expressions: Iterable[str], *, shows: bool = True) -> Iterator[tuple[str, Answer]]:
        """The answers of the server, in any order. Without `shows` the text of a value is `?`."""
        waiting = list(expressions)
        for start in range(0, len(waiting), _CHUNK):
            yield from self._chunk(waiting[start : start + _CHUNK], shows)

    def _chunk(self, expressions: Sequence[str], shows: bool) -> Iterator[tuple[str, Answer]]:
        accepted: list[tuple[str, str]] = []
        for at, expression in enumerate(expressions):
            refusal = self._refusal((f"e{at}", expression), shows)
            if refusal is None:
                accepted.append((f"e{at}", expression))
            else:
                yield expression, refusal
        policies = [accepted[start : start + _TOGETHER] for start in range(0, len(accepted), _TOGETHER)]
        try:
            for number, group in enumerate(policies):
                name = f"oracle-{number}"
                self._client.post(POLICIES, json=_policy(name, group, shows=shows)).raise_for_status()
                record_answers.bind(self._client, name)
            for number, group in enumerate(policies):
                self._wait(f"oracle-{number}", in_force=True)
                for name, expression in group:
                    yield expression, self._answer(f"oracle-{number}.{name}")
        finally:
            for path in (BINDINGS, POLICIES):
                for number in range(len(policies)):
                    self._client.delete(f"{path}/oracle-{number}")
            for number in range(len(policies)):
                self._wait(f"oracle-{number}", in_force=False)

    def _refusal(self, named: tuple[str, str], shows: bool) -> Answer | None:
        body = _policy("oracle-check", [named], shows=shows)
        try:
            response = self._client.post(POLICIES, params={"dryRun": "All"}, json=body)
        except httpx.RemoteProtocolError:
            # 1.36 panics on optional elements whose type is known at run time only.
            return Answer("broke", text="the server broke off while it compiled the expression")
        if response.status_code == httpx.codes.CREATED:
            return None
        message = str(response.json().get("message", response.text))
        if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            return Answer("broke", text=message)
        return Answer("refused", text=message.partition("compilation failed: ")[2] or message)

    def _asked(self, name: str) -> httpx.Response:
        return self._client.post(PODS, params={"dryRun": "All", "fieldManager": name}, json=POD)

    def _wait(self, policy: str, *, in_force: bool) -> None:
        for _ in range(300):
            if (self._asked(f"{policy}.probe").status_code != httpx.codes.CREATED) is in_force:
                return
            time.sleep(0.1)
        raise SystemExit(f"the server did not {'load' if in_force else 'drop'} {policy} within 30 s")

    def _answer(self, name: str) -> Answer:
        kind, described, text = record_answers.denial(self._asked(name))
        if kind == "error":
            text = text.partition("fails to evaluate: ")[2] or text
        return Answer(kind, described, text)


# --- differences ------------------------------------------------------------------------------------------

_KEYS: Final = re.compile("the map has the key .* twice|cannot be the key of a map")
_UNORDERED: Final = re.compile(r"'(?:min|max|isSorted)' does not take|NaN has no order")
_LEAST: Final = re.compile(r"\.sub\(.*-9223372036854775808")
_LOST_ERROR: Final = "*types.Err is not traits.Lister"


def _of_error(pattern: re.Pattern[str]) -> Callable[[str, Answer, Answer], bool]:
    """An error here with this text, where the server has a value."""
    return lambda _, here, there: here.kind == "error" and bool(pattern.search(here.text)) and there.kind == "value"


def _has_optional_part(expression: str, _: Answer, there: Answer) -> bool:
    """Did the server break off at a list or map with an optional element?"""
    if there.kind != "broke":
        return False
    nodes = list(syntax.walk(parse(expression)))
    parts = [part for node in nodes if isinstance(node, syntax.ListLiteral) for part in node.elements]
    entries = [entry for node in nodes if isinstance(node, syntax.MapLiteral) for entry in node.entries]
    return any(part.optional for part in (*parts, *entries))


def _of_lost_error(_: str, here: Answer, there: Answer) -> bool:
    return here.kind == "value" and there.kind == "error" and _LOST_ERROR in there.text


def _in_another_order(expression: str, here: Answer, there: Answer) -> bool:
    same = here.kind == there.kind == "value" and here.type == there.type and sorted(here.text) == sorted(there.text)
    return same and "sortBy(" in expression


KNOWN: Final[dict[str, Callable[[str, Answer, Answer], bool]]] = {
    "the server breaks off": _has_optional_part,
    "keys of a map": _of_error(_KEYS),
    "values without order": _of_error(_UNORDERED),
    "order of equal keys": _in_another_order,
    "errors of lists": _of_lost_error,
    "least int": lambda text, here, there: here.kind == there.kind == "value" and bool(_LEAST.search(text)),
}
"""Documented differences (docs/comparison.md): the first class that fits."""
_RANDOM: Final = "order of a map"
"""The class of an expression for which the server has several answers."""


def compare(expression: str, here: Answer, there: Answer) -> Difference | None:
    """The difference of two answers; None if they are the same."""
    same = here.kind == there.kind
    if same and here.kind == "value" and "?" not in (here.text, there.text):
        same = (here.type, here.text) == (there.type, there.text)
    if same:
        return None
    known = next((name for name, fits in KNOWN.items() if fits(expression, here, there)), "")
    return Difference(expression, here, there, known)


@dataclasses.dataclass
class Outcome:
    """What a run found."""

    differences: list[Difference] = dataclasses.field(default_factory=list)
    answers: Counter[str] = dataclasses.field(default_factory=Counter)
    limits: int = 0
    constants: int = 0

    @property
    def new(self) -> list[Difference]:
        """Differences that are not documented."""
        return [each for each in self.differences if not each.known]

    def summary(self) -> str:
        """One line for the answers, then one for each class of differences, then the new ones in full."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.answers.most_common())
        lines = [
            f"{self.answers.total()} expressions ({kinds}), {self.limits} at the limit of the cost, of which"
            f" {self.constants} are constant: the server charges what it has folded, not Kubernetes' tables of costs"
        ]
        classes = Counter(each.known or "NOT DOCUMENTED" for each in self.differences)
        lines += [f"{count:>6}  {name}" for name, count in classes.most_common()] or ["     0  differences"]
        return "\n".join([*lines, *map(str, self.new)])


def kept(folder: Path) -> list[str]:
    """The expressions of the inputs of the fuzzer's target `cel-random` in a folder."""
    return [Generator(Numbers(path.read_bytes())).one() for path in sorted(folder.glob("*"))]


def found() -> list[str]:
    """Expressions on which a target of the fuzzer once failed."""
    texts = [path.read_bytes().decode("utf-8", "replace") for path in sorted((FOUND / "cel").glob("*"))]
    return [*texts, *kept(FOUND / "cel-random")]


def _asked_again(server: Server, difference: Difference) -> Difference | None:
    """The difference to the answers to the expression alone, without others that use up the cost of its policy."""
    if difference.known:
        return difference
    answers = {answer for _ in range(_AGAIN) for _, answer in server.answers([difference.expression])}
    if len(answers) > 1:
        return dataclasses.replace(difference, known=_RANDOM)
    return compare(difference.expression, difference.ours, answers.pop())


def run(server: Server, expressions: Sequence[str], seed: int, limits: int) -> Outcome:
    """Compare expressions, and the cost of `limits` of them, chosen by the seed."""
    outcome = Outcome()
    measurable = []
    for expression, there in server.answers(expressions):
        here = ours(expression, server.pod)
        outcome.answers[there.kind] += 1
        difference = compare(expression, here, there)
        if difference is not None:
            outcome.differences.append(difference)
        elif here.kind == "value":
            measurable.append(expression)
    outcome.differences = [again for each in outcome.differences if (again := _asked_again(server, each))]
    random.Random(seed).shuffle(measurable)  # noqa: S311 - not for secrets
    constant = [pair for each in CONSTANT if (pair := at_the_limit(each, server.pod))]
    pairs = [*constant, *(pair for each in measurable[:limits] if (pair := at_the_limit(each, server.pod)))]
    outcome.limits, outcome.constants = len(pairs), len(constant)
    theirs = dict(server.answers([each for pair in pairs for each in pair], shows=False))
    for allowed, exceeding in pairs:
        for each, here in ((allowed, Answer("value", "bool")), (exceeding, Answer("error", text=_TOO_COSTLY))):
            there = theirs[each]
            if here.kind != there.kind or (there.kind == "error" and _TOO_COSTLY not in there.text):
                outcome.differences.append(Difference(each, here, there, ""))
    return outcome


def missing_binaries(folder: Path = BINARIES) -> list[str]:
    """The programs of an API server that are not in the folder."""
    return [name for name in _SERVERS if not os.access(folder / name, os.X_OK)]


def main() -> int:
    """Run, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="expressions (default 2000)")
    parser.add_argument("--seed", type=int, default=None, help="default: the time; it is printed")
    parser.add_argument("--limits", type=int, default=None, help="costs to compare (default: a 50th of --count)")
    parser.add_argument(
        "--corpus", type=Path, default=None, help="a folder of inputs of the fuzzer's target cel-random"
    )
    parser.add_argument("--json", type=Path, default=None, help="write all differences to this file")
    arguments = parser.parse_args()
    missing = missing_binaries()
    if missing:
        parser.error(
            f"no API server to ask: {BINARIES} lacks {' and '.join(missing)}; set KUBEBUILDER_ASSETS to a folder"
            " that has them"
        )
    seed = int(time.time()) if arguments.seed is None else arguments.seed
    limits = arguments.count // 50 if arguments.limits is None else arguments.limits
    corpus = kept(arguments.corpus) if arguments.corpus is not None else []
    expressions = [*found(), *corpus, *Generator(seed).expressions(arguments.count)]
    with api_server() as client:
        server = Server(client)
        outcome = run(server, expressions, seed, limits)
        sys.stdout.write(f"seed {seed}, Kubernetes {server.version}: {outcome.summary()}\n")
    if arguments.json is not None:
        text = json.dumps([dataclasses.asdict(each) for each in outcome.differences], indent=1, ensure_ascii=False)
        arguments.json.write_text(text + "\n", encoding="utf-8")
    return 1 if outcome.new else 0


if __name__ == "__main__":
    sys.exit(main())
