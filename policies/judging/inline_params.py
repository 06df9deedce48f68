"""The `params` of a ValidatingPolicy, which are in its file.

A field that an expression reads and that they do not have is a mistake, unless the expression asks whether it is there.
For the API server, which has no inline parameters, they are written into the expressions: these read a variable with
the constants. Match conditions come before variables, so they get the constants themselves.
"""

import copy
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from kubecel.engine import Program
from kubecel.syntax import nodes as syntax
from kubecel.syntax.nodes import Node
from kubecel.syntax.references import bound_names, path_of
from neuron.findings import did_you_mean

PARAMS: Final = "params"
_Path = tuple[str, ...]


def unknown_fields(tree: Node, params: Mapping[str, object]) -> Iterator[tuple[int, str]]:
    """The offsets of fields that `params` does not have, with what is wrong; only literal names are compared."""
    read: dict[_Path, int] = {}
    asked: set[_Path] = set()
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        waiting += syntax.children(node)
        path = path_of(node) if isinstance(node, syntax.Select | syntax.Index) else None
        if path is not None and path[0] == PARAMS:
            if _is_asked(node):
                asked.add(path)
            else:
                read.setdefault(path, node.offset)
        elif isinstance(node, syntax.Binary) and node.operator == "in" and isinstance(node.left, syntax.Literal):
            owner = path_of(node.right)
            if owner is not None and owner[0] == PARAMS:
                asked.add((*owner, str(node.left.value)))
    for path, offset in sorted(read.items()):
        if any(path[: len(each)] == each for each in asked):
            continue
        owner_value = _owner(params, path)
        if owner_value is not None and path[-1] not in owner_value:
            place = ".".join(path[:-1])
            hint = did_you_mean(path[-1], list(owner_value)) or " Add it to spec.params."
            yield offset, f"'{place}' has no field '{path[-1]}'.{hint}"


def _is_asked(node: Node) -> bool:
    """Whether a chain of lookups has an optional one, or is the argument of `has`."""
    while isinstance(node, syntax.Select | syntax.Index):
        if node.optional or (isinstance(node, syntax.Select) and node.test):
            return True
        node = node.operand
    return False


def _owner(params: Mapping[str, object], path: _Path) -> Mapping[str, object] | None:
    """The mapping that should have the last step of a path; None if a step before is missing, or no mapping."""
    value: object = params
    for step in path[1:-1]:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else None


def inlined(spec: Mapping[str, object], params: Mapping[str, object], programs: Iterable[Program]) -> dict[str, object]:
    """A copy of a policy's spec whose expressions do not read `params`.

    Args:
        params: its constants.
    """
    places = {program.source: sorted(set(_places(program.syntax))) for program in programs}
    made: dict[str, Any] = copy.deepcopy(dict(spec))
    if not any(places.values()):
        return made
    constants = f"dyn({literal(params)})"
    name = _unused(PARAMS, {each["name"] for each in made.get("variables") or ()})
    for condition in made.get("matchConditions") or ():
        condition["expression"] = _replaced(condition["expression"], places, constants)
    read = False
    for field, keys in _EXPRESSIONS.items():
        for entry in made.get(field) or ():
            for key in keys:
                source = entry.get(key) or ""
                if not places.get(source):
                    continue
                read = True
                entry[key] = _replaced(source, places, f"variables.{name}")
                if (field, key) == ("validations", "expression") and "\n" not in source.strip():
                    # The default message quotes the expression: as its author wrote it.
                    entry.setdefault("message", f"failed expression: {source.strip()}")
    if read:
        made["variables"] = [{"name": name, "expression": constants}, *(made.get("variables") or ())]
    return made


_EXPRESSIONS: Final = {
    "variables": ("expression",),
    "validations": ("expression", "messageExpression"),
    "auditAnnotations": ("valueExpression",),
}
"""Fields of a policy whose expressions can read variables."""


def literal(value: object) -> str:
    """A JSON value as CEL.

    Values of a map or list become `dyn`: the API server refuses literals whose values have several types.
    """
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value) if math.isfinite(value) else f"double('{value}')"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case Mapping():
            return "{" + ", ".join(f"{literal(str(key))}: dyn({literal(each)})" for key, each in value.items()) + "}"
        case list():
            return "[" + ", ".join(_members(value)) + "]"
        case _:
            raise TypeError(f"no JSON value: {value!r}")


def _members(values: list[object]) -> Iterator[str]:
    mixed = len({type(each) for each in values}) > 1 or any(isinstance(each, list) for each in values)
    for each in values:
        yield f"dyn({literal(each)})" if mixed else literal(each)


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _replaced(source: str, places: Mapping[str, list[tuple[int, int]]], by: str) -> str:
    for start, end in reversed(places[source]):
        source = source[:start] + by + source[end:]
    return source


def _places(tree: Node) -> Iterator[tuple[int, int]]:
    """Where an expression names `params`, and no macro has a variable of this name."""
    waiting: list[tuple[Node, bool]] = [(tree, False)]
    while waiting:
        node, hidden = waiting.pop()
        if isinstance(node, syntax.Ident) and node.name == PARAMS and (not hidden or node.rooted):
            yield node.start - node.rooted, node.end
        names, bodies = bound_names(node)
        for child in syntax.children(node):
            yet = hidden or (PARAMS in names and any(child is body for body in bodies))
            waiting.append((child, yet))
