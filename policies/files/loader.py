"""Loads a folder of policy files as one `PolicySet`, or reports every problem in it."""

import hashlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from kubecel.budget import Clock
from kubecel.compile import Cel
from kubecel.engine import CelEngine
from neuron.findings import did_you_mean
from neuron.instances import Catalogue, InstanceType, Topology
from policies.files.cases import run_cases
from policies.files.reading import RefusedError, parse
from policies.judging.policy_set import PolicySet
from policies.judging.rules import Binding, ExpressionCompiler, HintRule, PodRule, ValidatingRule
from policies.schema import documents
from policies.schema import kinds as schema
from policies.schema.documents import Document, Problem
from runtime.files import TooLargeError, read_regular

_SUFFIXES: Final = (".yaml", ".yml", ".json")
_LARGEST_FILE: Final = 1 << 20
_LARGEST_FOLDER: Final = 16 << 20
_MOST_FILES: Final = 1000
_MOST_ENTRIES: Final = 10_000
_CONFIG_MAP_DATA: Final = "..data"


class PolicyError(Exception):
    """The files cannot be loaded.

    Attributes:
        problems: every problem, in the order of files and lines.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.file, problem.line)))
        super().__init__("\n".join(map(str, self.problems)))


def read_folder(folder: Path) -> dict[str, bytes]:
    """The content of the policy files below a folder, by path as the user knows it; without hidden files.

    The `..data` link of a mounted ConfigMap is resolved once, so that all files are of one generation.

    Raises:
        PolicyError: the folder or a file cannot be read, or a file is too large.
    """
    generation = folder / _CONFIG_MAP_DATA
    root = Path(os.path.realpath(generation)) if generation.is_dir() else folder
    if not root.is_dir():
        raise PolicyError([Problem(str(folder), 0, "this is not a directory. Give the folder of the policy files.")])
    reader = _FolderReader(folder, root)
    reader.read()
    if reader.problems:
        raise PolicyError(reader.problems)
    return reader.found


class _FolderReader:
    """Reads the policy files of one folder, up to limits. Regular files only: reading others could block."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder = folder
        self._root = root
        self._size = 0
        self.found: dict[str, bytes] = {}
        self.problems: list[Problem] = []

    def read(self) -> None:
        """Read all files, or as many as the limits allow."""
        seen = 0
        for directory, directories, names in os.walk(self._root, onerror=self._unreadable):
            directories[:] = sorted(name for name in directories if not name.startswith("."))
            seen += len(directories) + len(names)
            wanted = sorted(name for name in names if not name.startswith(".") and name.endswith(_SUFFIXES))
            over = len(self.found) + len(wanted) > _MOST_FILES or seen > _MOST_ENTRIES
            if over or not all(self._take(Path(directory, name)) for name in wanted):
                message = (
                    f"a folder of policies has at most {_MOST_FILES} policy files of {_LARGEST_FOLDER} bytes together,"
                    f" and {_MOST_ENTRIES} entries; move other files out of this folder."
                )
                self.problems.append(Problem(_shown(self._folder), 0, message))
                return

    def _take(self, path: Path) -> bool:
        """Read one file; False if the folder is too large."""
        if self._size > _LARGEST_FOLDER:
            return False
        shown = _shown(self._folder / path.relative_to(self._root))
        try:
            content = read_regular(path, _LARGEST_FILE)
        except TooLargeError:
            self.problems.append(Problem(shown, 0, f"the file is larger than {_LARGEST_FILE} bytes; split it."))
        except OSError as error:
            self.problems.append(Problem(shown, 0, f"this cannot be read: {error.strerror}."))
        else:
            self._size += len(content)
            self.found[shown] = content
        return self._size <= _LARGEST_FOLDER

    def _unreadable(self, error: OSError) -> None:
        self.problems.append(Problem(_shown(error.filename), 0, f"this cannot be read: {error.strerror}."))


def _shown(path: object) -> str:
    """A path as valid text: file names need not be UTF-8."""
    return os.fsencode(str(path)).decode("utf-8", "backslashreplace")


def load_folder(folder: Path, *, run_tests: bool = True) -> PolicySet:
    """Read, check, compile and test all policy files in a folder.

    Raises:
        PolicyError: a file has a problem.
    """
    return load(read_folder(folder), run_tests=run_tests)


def load(
    files: Mapping[str, bytes],
    *,
    engine: CelEngine | None = None,
    clock: Clock = time.monotonic,
    run_tests: bool = True,
) -> PolicySet:
    """Load files as one set of policies.

    Args:
        files: content by name.
        engine: compiles expressions.
        clock: bounds the evaluation of embedded cases.
        run_tests: whether to run the embedded cases; the load fails if a case fails.

    Raises:
        PolicyError: a file has a problem.
    """
    reader = _Reader(files)
    loaded = _Assembly(engine or Cel(hint=did_you_mean), reader)
    if reader.problems:
        raise PolicyError(reader.problems)
    found = PolicySet(loaded.validating, loaded.conversions, loaded.catalogue, digest(files), len(files), loaded.hints)
    results = [result for rule in found.rules for result in run_cases(rule, clock)] if run_tests else []
    failures = [result.failure for result in results if result.failure is not None]
    if failures:
        raise PolicyError(failures)
    return found


def digest(files: Mapping[str, bytes]) -> str:
    """SHA-256 of all names and contents, as hex."""
    total = hashlib.sha256()
    for name, content in sorted(files.items()):
        total.update(f"{len(name)}:{name}:{len(content)}:".encode(errors="surrogateescape"))
        total.update(content)
    return total.hexdigest()


Kind = TypeVar("Kind", bound=schema.AnyPolicy)


class _Reader:
    """Parses files to models, and collects the problems."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.problems: list[Problem] = []
        self.found: list[tuple[Document, schema.AnyPolicy]] = []
        seen: dict[tuple[str, str], str] = {}
        for name, content in sorted(files.items()):
            try:
                for document in documents.read(name, content):
                    self._read(document, seen)
            except documents.DocumentError as error:
                self.problems.append(Problem(name, error.line, error.message))

    def _read(self, document: Document, seen: dict[tuple[str, str], str]) -> None:
        try:
            policy = parse(document)
        except RefusedError as error:
            self.problems += error.problems
            return
        key = (policy.kind, policy.metadata.name)
        here = f"{document.file}:{document.line(('metadata', 'name'))}"
        if key in seen:
            path: documents.Path = ("metadata", "name")
            self.problems.append(document.problem(path, f"{key[0]} '{key[1]}' is already in {seen[key]}; rename one."))
            return
        seen[key] = here
        self.found.append((document, policy))

    def of(self, kind: type[Kind]) -> list[tuple[Document, Kind]]:
        """The documents of one kind, in the order of files."""
        return [(document, policy) for document, policy in self.found if isinstance(policy, kind)]


class _Assembly:
    """Compiles models, and makes the checks that need several fields or files. Adds problems to the reader's."""

    def __init__(self, engine: CelEngine, reader: _Reader) -> None:
        self._engine = engine
        self._problems = reader.problems
        bindings = self._bindings(reader)
        self.validating = tuple(
            self._validating(document, policy, bindings)
            for document, policy in reader.found
            if isinstance(policy, schema.ValidatingAdmissionPolicy | schema.ValidatingPolicy)
        )
        self.conversions = self._ordered(reader.of(schema.ConversionPolicy))
        self.hints = self._ordered_hints(reader.of(schema.SchedulingHintPolicy))
        self.catalogue = self._catalogue(reader.of(schema.InstanceTypeCatalog))
        self._families(reader.of(schema.ConversionPolicy))

    def _say(self, document: Document, path: documents.Path, message: str) -> None:
        self._problems.append(document.problem(path, message))

    # --- validation -----------------------------------------------------------------------------------------

    def _bindings(self, reader: _Reader) -> dict[str, list[Binding]]:
        known = [policy.metadata.name for _, policy in reader.of(schema.ValidatingAdmissionPolicy)]
        bindings: dict[str, list[Binding]] = {}
        for document, policy in reader.of(schema.ValidatingAdmissionPolicyBinding):
            spec = policy.spec
            if spec.policy_name not in known:
                message = f"spec.policyName is '{spec.policy_name}', but no file has a policy of that name."
                self._say(document, ("spec", "policyName"), message + did_you_mean(spec.policy_name, known))
            if spec.param_ref is not None:
                message = "spec.paramRef is not supported; use params of a ValidatingPolicy."
                self._say(document, ("spec", "paramRef"), message)
            self._check_actions(document, spec.validation_actions)
            binding = Binding(policy.metadata.name, spec.match_resources, spec.validation_actions)
            bindings.setdefault(spec.policy_name, []).append(binding)
        return bindings

    def _check_actions(self, document: Document, actions: Sequence[str]) -> None:
        path: documents.Path = ("spec", "validationActions")
        if "Deny" in actions and "Warn" in actions:
            self._say(document, path, "spec.validationActions has Deny and Warn, which repeat each other; keep one.")
        if len(set(actions)) < len(actions):
            self._say(document, path, f"spec.validationActions has an action twice: {', '.join(actions)}.")

    def _validating(
        self,
        document: Document,
        policy: schema.ValidatingAdmissionPolicy | schema.ValidatingPolicy,
        bindings: Mapping[str, list[Binding]],
    ) -> ValidatingRule:
        spec = policy.spec
        if spec.param_kind is not None:
            message = "spec.paramKind is not supported; use params of a ValidatingPolicy."
            self._say(document, ("spec", "paramKind"), message)
        if not spec.match_constraints.resource_rules:
            self._say(document, ("spec", "matchConstraints"), "spec.matchConstraints.resourceRules is missing.")
        if not spec.validations and not spec.audit_annotations:
            self._say(
                document, ("spec",), "spec has no validations and no auditAnnotations: the policy would do nothing."
            )
        if isinstance(policy, schema.ValidatingPolicy):
            bound: tuple[Binding, ...] = (Binding("", None, policy.spec.validation_actions),)
            self._check_actions(document, policy.spec.validation_actions)
        else:
            bound = tuple(bindings.get(policy.metadata.name, ())) or (Binding("", None, ("Deny",)),)
        compiler = ExpressionCompiler(self._engine, document)
        rule = compiler.validating(policy, bound)
        self._problems += compiler.problems
        return rule

    # --- pods -----------------------------------------------------------------------------------------------

    def _ordered(self, found: Sequence[tuple[Document, schema.ConversionPolicy]]) -> tuple[PodRule, ...]:
        rules = []
        self._check_orders(found)
        for document, policy in found:
            if policy.spec.locked and policy.spec.mode is None:
                self._say(document, ("spec", "locked"), "spec.locked locks spec.mode, but spec.mode is missing.")
            compiler = ExpressionCompiler(self._engine, document)
            rules.append(compiler.pods(policy))
            self._problems += compiler.problems
        return tuple(sorted(rules, key=lambda rule: rule.spec.order))

    def _ordered_hints(self, found: Sequence[tuple[Document, schema.SchedulingHintPolicy]]) -> tuple[HintRule, ...]:
        rules = []
        self._check_orders(found)
        for document, policy in found:
            spec = policy.spec
            if not any(
                (spec.tolerations, spec.node_affinity, spec.scheduler_name, spec.labels, spec.leader_worker_set)
            ):
                self._say(document, ("spec",), "spec sets no hint: the policy would do nothing.")
            compiler = ExpressionCompiler(self._engine, document)
            rules.append(compiler.hints(policy))
            self._problems += compiler.problems
        return tuple(sorted(rules, key=lambda rule: rule.spec.order))

    def _check_orders(
        self, found: Sequence[tuple[Document, schema.ConversionPolicy | schema.SchedulingHintPolicy]]
    ) -> None:
        """Each order must be unique among the policies of one kind."""
        orders: dict[int, str] = {}
        for document, policy in found:
            order = policy.spec.order
            if order in orders:
                message = f"spec.order {order} is also the order of '{orders[order]}'; the order must be unique."
                self._say(document, ("spec", "order"), message)
            orders[order] = policy.metadata.name

    def _families(self, found: Sequence[tuple[Document, schema.ConversionPolicy]]) -> None:
        known = self.catalogue.families()
        for document, policy in found:
            for at, family in enumerate(policy.spec.families):
                if family not in known:
                    message = f"spec.families[{at}] is '{family}', but no instance type has this family."
                    hint = did_you_mean(family, known) or f" Known are {', '.join(known)}."
                    self._say(document, ("spec", "families", at), message + hint)
            types = [entry for entry in self.catalogue if entry.family in policy.spec.families]
            lnc = policy.spec.logical_neuron_core
            if lnc is not None and types and not any(lnc in entry.logical_neuron_cores for entry in types):
                listed = ", ".join(policy.spec.families)
                message = f"spec.logicalNeuronCore is {lnc}; no instance type of {listed} supports it."
                self._say(document, ("spec", "logicalNeuronCore"), message)
            connected_otherwise = any(each.topology in (Topology.TORUS, Topology.SWITCH) for each in types)
            if policy.spec.unconnected == "Allow" and types and not connected_otherwise:
                listed = ", ".join(policy.spec.families)
                message = (
                    f"spec.unconnected is for Trn; {listed} are rings or chains, which always get consecutive devices."
                )
                self._say(document, ("spec", "unconnected"), message)

    # --- the catalogue --------------------------------------------------------------------------------------

    def _catalogue(self, found: Sequence[tuple[Document, schema.InstanceTypeCatalog]]) -> Catalogue:
        catalogue = Catalogue()
        seen: dict[str, str] = {}
        for document, policy in found:
            for at, entry in enumerate(policy.spec.instance_types):
                path: documents.Path = ("spec", "instanceTypes", at)
                if entry.name in seen:
                    message = f"instance type {entry.name} is already in {seen[entry.name]}; keep one."
                    self._say(document, path, message)
                seen.setdefault(entry.name, f"{document.file}:{document.line(path)}")
                made = instance_type(entry, catalogue.get(entry.name))
                fault = _fault(made)
                if fault:
                    self._say(document, path, f"instance type {entry.name}: {fault}.")
                catalogue = catalogue.extended([made])
        return catalogue


def instance_type(entry: schema.CatalogueEntry, known: InstanceType | None) -> InstanceType:
    """The instance type of a policy file's entry; fields that the entry lacks come from `known`."""
    lncs = entry.logical_neuron_cores or (known.logical_neuron_cores if known else (1,))
    topology = entry.topology or (known.topology if known else _guess_topology(entry.devices))
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
        ultraserver_nodes=(
            (known.ultraserver_nodes if known else ()) if entry.ultraserver_nodes is None else entry.ultraserver_nodes
        ),
        accelerator=known.accelerator if known else None,
    )


def _guess_topology(devices: int | None) -> Topology:
    return Topology.SINGLE if devices == 1 else Topology.SWITCH


def _fault(made: InstanceType) -> str:
    """Why the type is not valid; empty if it is."""
    if made.default_logical_neuron_core not in made.logical_neuron_cores:
        return f"defaultLogicalNeuronCore {made.default_logical_neuron_core} is not in logicalNeuronCores"
    if made.devices is not None and made.groups and made.groups[-1] > made.devices:
        return f"deviceGroups has {made.groups[-1]}, but the node has {made.devices} devices"
    return ""
