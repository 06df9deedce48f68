"""Fuzzes one target in this process: `python -m tests.fuzz.one TARGET [libFuzzer flags] [corpus]`."""

import random
import sys
from collections.abc import Callable
from typing import Any, Final

import atheris
import msgspec

with atheris.instrument_imports(
    include=["neuron", "checks", "conversion", "cluster", "webhook", "commands", "policies", "kubecel", "kubeletplugin"]
):
    from tests.fuzz.targets import TARGETS

JSON_TARGETS: Final = frozenset({"review", "pod", "claim", "config", "allocated", "cdi", "checkpoint"})
_TOKENS: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 1.5, 1e308, "", "a", "4", "1e3", "100m", "neuron", "\u202e", "\x00"),
    *([], {}, [None], [{}], {"": None}, {"a": [1]}, "aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "convert"),
    *("neuron.aws.com", "firstAvailable", "exactly", "matchAttribute", "resource.aws.com/devicegroup4_id", "Always"),
    *({"limits": {"aws.amazon.com/neuron": "4"}}, {"requests": {"aws.amazon.com/neuroncore": 3}}),
)


def main() -> None:
    target = sys.argv[1]
    arguments = [sys.argv[0], *sys.argv[2:]]
    options: dict[str, Callable[..., Any]] = {"custom_mutator": mutate_json} if target in JSON_TARGETS else {}
    atheris.Setup(arguments, TARGETS[target], **options)
    atheris.Fuzz()


def mutate_json(data: bytes, most: int, seed: int) -> bytes:
    """Change one place of a JSON value; bytes that are not JSON are changed as bytes."""
    choice = random.Random(seed)  # noqa: S311 - not for secrets
    try:
        value = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        value = None
    if value is None or choice.random() < 0.1:
        return bytes(atheris.Mutate(data, most))
    for _ in range(choice.choice((1, 1, 2, 4))):
        value = _changed(value, choice)
    return msgspec.json.encode(value)[:most]


def _changed(value: Any, choice: random.Random) -> Any:
    """The value with one node replaced, removed, repeated or added."""
    if isinstance(value, dict) and value:
        key = choice.choice(list(value))
        roll = choice.random()
        if roll < 0.6:
            return {**value, key: _changed(value[key], choice)}
        if roll < 0.7:
            return {name: each for name, each in value.items() if name != key}
        if roll < 0.85:
            return {**value, str(choice.choice(_TOKENS)): value[key]}
        return {**value, key: choice.choice(_TOKENS)}
    if isinstance(value, list) and value:
        index = choice.randrange(len(value))
        roll = choice.random()
        if roll < 0.6:
            return [*value[:index], _changed(value[index], choice), *value[index + 1 :]]
        if roll < 0.7:
            return value[:index] + value[index + 1 :]
        if roll < 0.85:
            return value[: index + 1] + value[index:]
        return [*value, choice.choice(_TOKENS)]
    return choice.choice(_TOKENS)


if __name__ == "__main__":
    main()
