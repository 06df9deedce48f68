"""Type-checks the expressions of a policy for the kinds that its rules name, as the API server does.

It warns and does not refuse: a kind may get the field in another version. Evaluation sees objects of any form, so a
field that no object has fails when the expression is evaluated.

Source: k8s.io/apiserver/pkg/admission/plugin/policy/validating/typechecking.go.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from conversion.objects.pod_places import path_text
from kubecel.compile import Cel
from kubecel.errors import CelError
from kubecel.syntax import nodes as syntax
from kubecel.syntax.nodes import Literal, Node, ObjectLiteral, path_of, walk
from kubecel.types import DYN, JSON_PATCH, Type, record
from neuron.findings import did_you_mean, few
from policies.judging.subjects import types_with
from policies.patching.json_patch import steps
from policies.schema.documents import Path, PolicyDocument

_OBJECTS: Final = ("object", "oldObject")
_PARAMETERS: Final = ("params",)
_BY_KIND: Final = re.compile(r"\b(kind|resource|requestKind|requestResource)\b")
"""An expression that may look at one kind only."""
_ASKED: Final = re.compile(r"(?:\.\?|\[\?['\"])(\w+)|\bhas\([^()]*\.(\w+)\)")
"""A field of which an expression asks whether it is there."""
_OBJECT_TYPE: Final = re.compile(r"\b[A-Z]\w*")
"""Types of objects in messages, such as Container: all of them are maps when expressions are evaluated."""
_ITEM: Final = re.compile(r"-|[0-9]+", re.ASCII)
"""The step of a JSON pointer into a list."""
_FIELD: Final = re.compile(r"has no field '([^']*)'")


@dataclasses.dataclass(frozen=True, slots=True)
class KnownKind:
    """A kind of Kubernetes; `name` is as in messages, e.g. `apps/v1 Deployment`."""

    name: str
    type: Type


def warnings(
    engine: Cel,
    document: PolicyDocument,
    sources: Sequence[tuple[Path, str]],
    kinds: Sequence[KnownKind],
    params: KnownKind | None = None,
) -> Iterator[str]:
    """Warnings about fields and types that the kinds do not have, with file and line.

    Of a policy that looks at the kind of the object, only what is wrong for every kind is reported, and so of fields of
    which it asks whether they are there.

    Args:
        sources: the expressions with their paths; variables before the expressions that read them.
        params: the kind of the parameter objects, if it is known.
    """
    yield from _warned(engine, document, sources, kinds, _OBJECTS)
    if params is not None:
        yield from _warned(engine, document, sources, (params,), _PARAMETERS)


def _warned(
    engine: Cel,
    document: PolicyDocument,
    sources: Sequence[tuple[Path, str]],
    kinds: Sequence[KnownKind],
    variables: Sequence[str],
) -> Iterator[str]:
    """Warnings about some variables, which have one of the kinds."""
    found: dict[tuple[Path, str], list[str]] = {}
    for kind in kinds:
        for path, message in _of_kind(engine, document, sources, kind, variables):
            found.setdefault((path, message), []).append(kind.name)
    failing: dict[tuple[Path, str], set[str]] = {}
    for (path, message), names in found.items():
        failing.setdefault((path, _wrong(message)), set()).update(names)
    by_kind = any(_BY_KIND.search(source) for _, source in sources)
    asked = {name for _, source in sources for names in _ASKED.findall(source) for name in names if name}
    for (path, message), names in sorted(found.items(), key=lambda each: document.line(each[0][0])):
        field = _FIELD.search(message)
        guarded = by_kind or (field is not None and field[1] in asked)
        if guarded and len(failing[path, _wrong(message)]) < len(kinds):
            continue
        line = document.text_lines.get(path, document.line(path))
        yield f"{document.file}:{line}: {path_text(path)}: {message} ({few(names, 3)})"


def _wrong(message: str) -> str:
    """What is wrong, without the type of the object."""
    field = _FIELD.search(message)
    return message if field is None else field[0]


def _of_kind(
    engine: Cel,
    document: PolicyDocument,
    sources: Iterable[tuple[Path, str]],
    kind: KnownKind,
    names: Sequence[str],
) -> Iterator[tuple[Path, str]]:
    """What is wrong if the variables `names` are objects of one kind."""
    variables: dict[str, Type] = {}
    typed = dict.fromkeys(names, kind.type)
    known_here = (*typed, "variables")
    for path, source in sources:
        known: Mapping[str, Type] = {**types_with({}), **typed, "variables": record("variables", variables)}
        result = DYN
        # What reads no object was checked when it was compiled for objects of any form.
        mutates = path[1] == "mutations"
        if any(name in source for name in known_here):
            try:
                result = engine.compile(source, known, mutates=mutates).result
            except CelError as error:
                if _FIELD.search(error.message) or not _OBJECT_TYPE.search(error.message):
                    yield path, error.message
        if mutates and names is _OBJECTS:
            yield from ((path, message) for message in _wrong_fields(engine, source, known, kind.type))
        if path[1] == "variables":
            variables[document.data["spec"]["variables"][path[2]]["name"]] = result


def _wrong_fields(engine: Cel, source: str, known: Mapping[str, Type], kind: Type) -> Iterator[str]:
    """Fields of `Object{}` and of literal paths of `JSONPatch{}` that the kind does not have."""
    try:
        tree = engine.compile(source, {**known, **dict.fromkeys(("object", "oldObject"), DYN)}, mutates=True).syntax
    except CelError:
        return  # It reads a variable that does not compile for this kind.
    for node in walk(tree):
        if not isinstance(node, ObjectLiteral):
            continue
        if node.type_name == JSON_PATCH.name:
            for field in node.fields:
                if field.name == "path" and isinstance(field.value, Literal):
                    yield from _unknown_step(kind, steps(str(field.value.value)))
            continue
        above = node.type_name.split(".")[1:]
        yield from (wrong for field in node.fields for wrong in _unknown_step(kind, [*above, field.name]))


def _unknown_step(kind: Type, keys: Sequence[str]) -> Iterator[str]:
    """The first key of a path that names no field; lists on the way have no key, or an index."""
    found = kind
    for key in keys:
        while found.name == "list" and not _ITEM.fullmatch(key):
            found = found.parameters[0]
        if found.name in ("list", "map"):
            found = found.parameters[-1]
        elif found.fields is None:
            return
        elif key not in found.fields:
            yield f"'{found.name}' has no field '{key}'.{did_you_mean(key, found.fields)}"
            return
        else:
            found = found.fields[key]


# --- inline parameters ------------------------------------------------------------------------------------------------

_Path: TypeAlias = tuple[str, ...]


def unknown_fields(tree: Node, params: Mapping[str, object]) -> Iterator[tuple[int, str]]:
    """The offsets of fields that `params` does not have, with what is wrong; only literal names are compared."""
    read: dict[_Path, int] = {}
    asked: set[_Path] = set()
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        waiting += syntax.children(node)
        path = path_of(node) if isinstance(node, syntax.Select | syntax.Index) else None
        if path is not None and path[0] == "params":
            if _is_asked(node):
                asked.add(path)
            else:
                read.setdefault(path, node.offset)
        elif isinstance(node, syntax.Binary) and node.operator == "in" and isinstance(node.left, syntax.Literal):
            owner = path_of(node.right)
            if owner is not None and owner[0] == "params":
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
