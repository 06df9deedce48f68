"""Validates YAML documents as models, and reports all problems at once, each with file and line.

The instance catalogue of policy files is made here, too: the built-in types, with those that InstanceTypeCatalogs add
or change. Webhook and driver read the same files, so that the driver publishes what the webhook requests. This needs no
CEL.
"""

import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from neuron.api.fields import mapping, text
from neuron.findings import did_you_mean
from neuron.hardware import sources
from neuron.hardware.connections import MOST_GROUPS
from neuron.hardware.instances import Catalogue, InstanceType, Topology
from policies.files.folders import PolicyError
from policies.schema import api_rules, documents
from policies.schema.documents import PolicyDocument, PolicyProblem
from policies.schema.kinds import (
    API_VERSION,
    KINDS,
    OLDER_VAP_API_VERSIONS,
    VAP_API_VERSION,
    AnyPolicy,
    CatalogueEntry,
    InstanceTypeCatalog,
)

_LONGEST_VALUE: Final = 64
_BOOLEANS: Final = {True: "y, yes, on and true", False: "n, no, off and false"}
"""Words of YAML 1.1, as kubectl reads them."""
_WITH_PARAMS: Final = ("ValidatingAdmissionPolicy", "MutatingAdmissionPolicy")
_SAID: Final = {
    "missing": "the field is missing",
    "string_type": "this must be text",
    "bool_type": "this must be true or false",
    "int_type": "this must be a whole number",
    "tuple_type": "this must be a list",
    "dict_type": "this must be a mapping",
    "model_type": "this must be a mapping of fields",
    "model_attributes_type": "this must be a mapping of fields",
    "string_too_short": "this must not be empty",
    "too_short": "this must not be empty",
    "timezone_aware": "the time needs a zone, such as Z",
}


class RefusedError(Exception):
    """A document is not a valid policy.

    Attributes:
        problems: every problem of the document.
    """

    def __init__(self, problems: list[PolicyProblem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def policies(
    found: Iterable[PolicyDocument], problems: list[PolicyProblem], refused: list[PolicyDocument] | None = None
) -> Iterator[tuple[PolicyDocument, AnyPolicy]]:
    """The policies in documents, in their order; what is wrong is added to `problems`, where it is to `refused`."""
    for document in found:
        try:
            policy = parse(document)
        except RefusedError as error:
            problems += error.problems
            if refused is not None:
                refused.append(document)
        else:
            yield document, policy


def read_documents(files: Mapping[str, bytes], problems: list[PolicyProblem]) -> Iterator[PolicyDocument]:
    """The documents of files, in their order; what is wrong with the text is added to `problems`."""
    for name, content in sorted(files.items()):
        try:
            yield from documents.read(name, content)
        except documents.DocumentError as error:
            problems.append(PolicyProblem(name, error.line, error.message))


Kind = tuple[object, object]
"""apiVersion and kind of an object."""


def param_kinds(found: Iterable[PolicyDocument]) -> frozenset[Kind]:
    """The kinds of parameter objects that policies of the API server in these documents name."""
    specs = (mapping(data.get("spec")) for each in found if (data := mapping(each.data)).get("kind") in _WITH_PARAMS)
    return frozenset(filter(None, (_kind(mapping(spec.get("paramKind"))) for spec in specs)))


def kind_of(document: PolicyDocument) -> Kind | None:
    """apiVersion and kind of a document; None if they are not text."""
    return _kind(mapping(document.data))


def _kind(data: Mapping[str, object]) -> Kind | None:
    version, kind = data.get("apiVersion"), data.get("kind")
    return (version, kind) if isinstance(version, str) and isinstance(kind, str) else None


def name_of(document: PolicyDocument) -> str:
    """`metadata.name` of a document; empty if it has none."""
    return text(mapping(mapping(document.data).get("metadata")).get("name"))


def parse(document: PolicyDocument) -> AnyPolicy:
    """The policy in a document.

    Raises:
        RefusedError: the document is not a valid policy.
    """
    data = document.data
    if not isinstance(data, dict):
        raise RefusedError([document.problem((), f"a policy is a mapping of fields, not a {_name(data)}.")])
    if is_older(document):
        data = {**data, "apiVersion": VAP_API_VERSION}
    model = _model(document, data.get("apiVersion"))
    try:
        policy = model.model_validate(data)
    except ValidationError as error:
        raise RefusedError([_problem(document, model, each) for each in _causes(error)]) from error
    found = [document.problem(path, f"{_path_text(path)}: {said}.") for path, said in api_rules.problems(data)]
    if found:
        raise RefusedError(found)
    return policy


def is_older(document: PolicyDocument) -> bool:
    """Whether a document is a policy or binding of an older version of the API server, which is read as v1."""
    data = mapping(document.data)
    return data.get("apiVersion") in OLDER_VAP_API_VERSIONS and (VAP_API_VERSION, data.get("kind")) in KINDS


def _model(document: PolicyDocument, version: object) -> type[AnyPolicy]:
    kind = document.data.get("kind")
    model = KINDS.get((version, kind)) if isinstance(version, str) and isinstance(kind, str) else None
    if model is not None:
        return model
    for right, known in KINDS:
        if kind == known:
            raise RefusedError(
                [document.problem(("apiVersion",), f"{kind} has apiVersion {right}, not {_cut(version)}.")]
            )
    kinds = [known for _, known in KINDS]
    hint = did_you_mean(str(kind)[:_LONGEST_VALUE], kinds)
    hint = hint or f" Known are {', '.join(kinds)} ({API_VERSION}, {VAP_API_VERSION})."
    raise RefusedError([document.problem(("kind",), f"kind {_cut(kind)} is unknown.{hint}")])


def _causes(error: ValidationError) -> list[ErrorDetails]:
    """The errors, without "too short" for lists whose entries have errors: pydantic reports both."""
    errors = error.errors(include_url=False)
    inside = {each["loc"][: len(each["loc"]) - cut] for each in errors for cut in range(1, len(each["loc"]) + 1)}
    return [each for each in errors if each["type"] != "too_short" or each["loc"] not in inside]


def _problem(document: PolicyDocument, model: type[BaseModel], error: ErrorDetails) -> PolicyProblem:
    path = error["loc"]
    where = _path_text(path)
    if error["type"] == "extra_forbidden":
        hint = did_you_mean(str(path[-1])[:_LONGEST_VALUE], _fields_at(model, path[:-1]))
        return document.problem(path, f"{where}: unknown field.{hint}")
    said = _SAID.get(error["type"]) or error["msg"][:1].lower() + error["msg"][1:]
    value = error["input"]
    if error["type"] == "missing" or isinstance(value, dict | list):
        return document.problem(path, f"{where}: {said}.")
    shown = _cut(value)
    hint = ""
    if error["type"] in ("literal_error", "enum"):
        allowed = [word.strip("'") for word in error["ctx"]["expected"].replace(" or ", ", ").split(", ")]
        said, hint = f"this must be one of {', '.join(allowed)}", did_you_mean(str(value)[:_LONGEST_VALUE], allowed)
        if isinstance(value, str) and value in allowed:  # A string such as "1" where a number is allowed.
            hint = " Leave out the quotes."
    if isinstance(value, bool) and error["type"] in ("string_type", "literal_error", "enum"):
        shown = str(value).lower()
        hint = f" YAML reads {_BOOLEANS[value]} without quotes as {shown}: put the word in quotes."
    return document.problem(path, f"{where} is {shown}: {said}.{hint}")


def _cut(value: object) -> str:
    shown = repr(value[:_LONGEST_VALUE] if isinstance(value, str) else value)
    cut = isinstance(value, str) and len(value) > _LONGEST_VALUE
    return shown[:_LONGEST_VALUE] + "…" if cut or len(shown) > _LONGEST_VALUE else shown


def _path_text(path: tuple[str | int, ...]) -> str:
    text = ""
    for step in path:
        if step == "[key]":  # pydantic's name for the key itself
            continue
        name = step if isinstance(step, int) or len(step) <= _LONGEST_VALUE else f"{step[:_LONGEST_VALUE]}…"
        text += f"[{name}]" if isinstance(name, int) else f".{name}" if text else name
    return text


def _fields_at(model: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    current: type[BaseModel] | None = model
    for step in path:
        if current is None:
            return []
        if isinstance(step, int):
            continue
        field = next((info for info in current.model_fields.values() if info.alias == step), None)
        field = field or current.model_fields.get(step)
        current = next(_models_in(field.annotation), None) if field else None
    return [info.alias or name for name, info in current.model_fields.items()] if current else []


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _models_in(part)


def _name(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case str():
            return "text"
        case int() | float():
            return "number"
        case list():
            return "list"
    return "object"


# --- the instance catalogue -------------------------------------------------------------------------------------------


def read_catalogue(files: Mapping[str, bytes]) -> Catalogue:
    """The catalogue of policy files. Documents of other kinds are ignored, whether they are valid or not.

    Args:
        files: content by name.

    Raises:
        PolicyError: a file is not YAML, or an InstanceTypeCatalog has a problem.
    """
    problems: list[PolicyProblem] = []
    read = read_documents(files, problems)
    ours = (each for each in read if mapping(each.data).get("kind") == "InstanceTypeCatalog")
    found = policies(ours, problems)
    catalogue, faults = catalogue_of([(where, each) for where, each in found if isinstance(each, InstanceTypeCatalog)])
    if problems or faults:
        raise PolicyError([*problems, *faults])
    return catalogue


def catalogue_of(found: Sequence[tuple[PolicyDocument, InstanceTypeCatalog]]) -> tuple[Catalogue, list[PolicyProblem]]:
    """The built-in catalogue with the types of all documents, and what is wrong with them."""
    catalogue, problems = Catalogue(), []
    seen: dict[str, str] = {}
    for document, policy in found:
        for at, entry in enumerate(policy.spec.instance_types):
            path: documents.Path = ("spec", "instanceTypes", at)
            if entry.name in seen:
                message = f"instance type {entry.name} is already in {seen[entry.name]}; keep one."
                problems.append(document.problem(path, message))
            seen.setdefault(entry.name, f"{document.file}:{document.line(path)}")
            made = instance_type(entry, catalogue.get(entry.name))
            fault = _fault(made)
            if fault:
                problems.append(document.problem(path, f"instance type {entry.name}: {fault}."))
            catalogue = catalogue.extended([made])
    return catalogue, problems


def instance_type(entry: CatalogueEntry, known: InstanceType | None) -> InstanceType:
    """The instance type of a policy file's entry; fields that the entry lacks come from `known`.

    Who states what claims are made by has such nodes: the type is a candidate, as those that AWS offers. Its memory
    alone says nothing about that.
    """
    figures = tuple(_stated(entry))
    stands = known is None or not {"name", "memory"}.issuperset(figures)
    lncs = entry.logical_neuron_cores or (known.logical_neuron_cores if known else (1,))
    # Of the two topologies that need no figure of their own, the one that its number of devices allows.
    guessed = Topology.SINGLE if entry.devices == 1 else Topology.SWITCH
    topology = entry.topology or (known.topology if known else guessed)
    groups = entry.device_groups
    default: int | None = entry.default_logical_neuron_core
    if default is None:
        default = known.default_logical_neuron_core if known and not entry.logical_neuron_cores else lncs[-1]
    return InstanceType(
        name=entry.name,
        family=entry.family or (known.family if known else entry.name.partition(".")[0]),
        devices=entry.devices or (known.devices if known else None),
        cores_per_device=entry.cores_per_device or (known.cores_per_device if known else None),
        logical_neuron_cores=tuple(lncs),
        default_logical_neuron_core=default,
        memory_gib=entry.memory_gib or (known.memory_gib if known else None),
        topology=topology,
        groups=(known.groups if known else ()) if groups is None else tuple(sorted(set(groups))),
        groups_known=groups is not None or known is None or known.groups_known,
        ultraserver_nodes=(
            (known.ultraserver_nodes if known else ()) if entry.ultraserver_nodes is None else entry.ultraserver_nodes
        ),
        accelerator=known.accelerator if known else None,
        offered=stands or (known is not None and known.offered),
        released=stands or (known is not None and known.released),
        sources={**(known.sources if known else {}), **dict.fromkeys(figures, sources.POLICY_FILE)},
    )


def _stated(entry: CatalogueEntry) -> Iterator[str]:
    """The figures that an entry states."""
    yield "name"
    fields = {
        "devices": entry.devices,
        "cores": entry.cores_per_device,
        "lnc": entry.logical_neuron_cores or entry.default_logical_neuron_core,
        "memory": entry.memory_gib,
        "topology": entry.topology,
        "groups": entry.device_groups,
        "ultraserver": entry.ultraserver_nodes,
    }
    yield from (figure for figure, value in fields.items() if value is not None)


def _fault(made: InstanceType) -> str:
    """Why the type is not valid; empty if it is."""
    if made.default_logical_neuron_core not in made.logical_neuron_cores:
        return f"defaultLogicalNeuronCore {made.default_logical_neuron_core} is not in logicalNeuronCores"
    if made.devices is not None and made.groups and made.groups[-1] > made.devices:
        return f"deviceGroups has {made.groups[-1]}, but the node has {made.devices} devices"
    odd = next((size for size in made.groups if made.devices is not None and made.devices % size), None)
    if odd is not None:
        return (
            f"deviceGroups has {odd}, which does not divide the {made.devices} devices of a node: some devices would be"
            " in no group"
        )
    if len(made.groups) > MOST_GROUPS:
        return f"deviceGroups has {len(made.groups)} sizes, but a device can publish {MOST_GROUPS}"
    if made.consecutive and made.groups:
        # Its nodes publish windows instead, so a claim for a group would never be allocated.
        return (
            f"deviceGroups does not apply to topology {made.topology.value}, which gives any number of consecutive"
            " devices; write deviceGroups: []"
        )
    # Shared counters of one set in a ResourceSlice: one for each device.
    if made.ultraserver_nodes and made.devices is not None and made.devices > 32:
        return (
            f"ultraserverNodes needs a node of at most 32 devices, and this one has {made.devices}: the driver could"
            " not publish the whole node"
        )
    return ""
