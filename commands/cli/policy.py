"""`neuron-dra policy`: checks policy files, runs their cases, explains verdicts, prints rules, and exports policies."""

import asyncio
import datetime as dt
import difflib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

import click

from commands.cli.clusters import ClusterChoice, connected, namespace_option, optional_cluster_options
from commands.cli.inputs import filename_option, need_files
from commands.cli.streams import output_option, say, write
from neuron import names
from neuron.findings import did_you_mean
from runtime.text import counted

if TYPE_CHECKING:
    from policies.files.cases import CaseResult
    from policies.judging.rules import PolicySet

FAULTY: Final = 1
UNREADABLE: Final = 2

_FOLDER: Final = click.argument("folder", metavar="DIR|FILE", type=click.Path(path_type=Path))


@click.group()
def policy() -> None:
    """Check, test, explain and export policy files."""


@policy.command()
@_FOLDER
@optional_cluster_options("Also check the fields of kinds that Kubernetes does not have, by the schemas of")
@click.pass_context
def check(context: click.Context, /, folder: Path, cluster: ClusterChoice) -> None:
    """Read and compile every policy file below DIR, or of one FILE. Does not run the embedded cases.

    Notes name fields that objects of the matched kinds do not have: of Kubernetes' kinds, of those whose
    CustomResourceDefinition is below DIR, and, with --kubeconfig or --context, of those that the cluster serves. They
    also list the policies that a cluster with the shipped webhook configuration would never evaluate.

    Exit code: 0 = no problem, 1 = a policy file has a problem, 2 = a file cannot be read.
    """
    from policies.judging.coverage import changing_notes, notes
    from policies.judging.followed_rules import followed

    found = _load(context, folder, FAULTY, cluster)
    kinds = {
        "for validation": found.validating,
        "for changes": found.mutating,
        "for conversion": found.conversions,
        "for scheduling hints": found.hints,
        "with named templates": found.templates,
    }
    counts = ", ".join(f"{len(rules)} {words}" for words, rules in kinds.items() if rules)
    write(f"{counted(found.files, 'file')}: policies: {counts or 'none (catalogues do not count)'}. No problems.\n")
    for note in dict.fromkeys((*found.notes, *notes(found.validating), *changing_notes(found.mutating))):
        say(f"note: {note}")
    _, left_out = followed(found.validating)
    if left_out:
        say(f"note: with validation.followPolicies: {left_out}.")


@policy.command()
@_FOLDER
@output_option(
    "rules",
    "values",
    told="rules: as a list. values: as values of the chart, with the conditions for pods.",
)
@click.pass_context
def rules(context: click.Context, folder: Path, output: str) -> None:
    """Print the rules that the policies need beside those of the shipped ValidatingWebhookConfiguration.

    They are in the form of the chart's value validation.extraRules, and of `rules` of a webhook configuration. A rule
    sends all objects that it matches to the webhook, also those without Neuron.

    Of pods without claims, only those are sent for which a condition of validation.podConditions is true. With
    -o values, the conditions that the policies need are printed, too: the match conditions of each policy that the API
    server can evaluate, or "true" (every pod) if it has none.

    Exit code: 0 = printed, 2 = the files cannot be read or compiled.
    """
    import yaml

    from policies.judging.coverage import needed_rules, pod_conditions

    found = _load(context, folder, UNREADABLE).validating
    needed = needed_rules(found)
    conditions = list(pod_conditions(found))
    if output == "values":
        expressions = list(dict.fromkeys(each.expression for each in conditions))
        values = {"validation": {"extraRules": needed, "podConditions": expressions}}
        write(yaml.safe_dump(values, sort_keys=False, width=100))
        return
    write(yaml.safe_dump(needed, sort_keys=False) if needed else "[]\n")
    if conditions:
        names = ", ".join(f"'{each.policy}'" for each in conditions)
        say(f"note: policies that need pods without claims, which are not sent: {names}. Use -o values.")


@policy.command()
@_FOLDER
@click.option("--junit", metavar="FILE", type=click.Path(path_type=Path), help="Also write the results as JUnit XML.")
@click.pass_context
def test(context: click.Context, folder: Path, junit: Path | None) -> None:
    """Run the cases that are embedded in the policy files below DIR. A case without `at` is a request of now.

    Of a MutatingAdmissionPolicy, each case (MutatingPolicyTest) also prints the lines of the object that change.

    Exit code: 0 = all cases pass, 1 = a case fails, 2 = the files cannot be read or compiled.
    """
    from policies.files.cases import CASE_SECONDS, run_cases

    found = _load(context, folder, UNREADABLE)
    results = [result for rule in found.rules for result in run_cases(rule, time.monotonic)]
    write(table(results))
    taken = sum(result.seconds for result in results)
    if taken > CASE_SECONDS:
        say(_slow(results, taken))
    untested = [rule.name for rule in found.rules if not _cases(results, rule.name)]
    if untested:
        say(f"Policies without a case: {', '.join(untested)}.")
    if junit is not None:
        try:
            junit.write_bytes(junit_xml(results))
        except OSError as error:
            say(f"{junit}: cannot be written: {error.strerror}.")
            context.exit(UNREADABLE)
    context.exit(FAULTY if any(result.failure for result in results) else 0)


@policy.command()
@click.option(
    "--policies",
    "folder",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder of policies.",
)
@filename_option("judge")
@click.option("-n", "--namespace", default="default", show_default=True, help="Namespace of objects that have none.")
@click.option(
    "--operation",
    type=click.Choice(["CREATE", "UPDATE", "DELETE"]),
    default="CREATE",
    show_default=True,
    help="Operation on the objects.",
)
@click.pass_context
def explain(context: click.Context, folder: Path, filenames: tuple[str, ...], namespace: str, operation: str) -> None:
    """Show which policies match the objects in files, their verdicts, and the reasons.

    Objects and the pods of workloads are evaluated as written, without conversion; `neuron-dra convert` prints the
    converted objects.

    Exit code: 0 = nothing would be denied, 1 = an object would be denied, 2 = a file cannot be read.
    """
    from commands.objects.file_policies import FilePolicies
    from commands.objects.manifest_files import read_sources
    from commands.objects.manifests import FileStore, manifests
    from conversion.objects.pod_places import path_text
    from policies.judging.evaluate import evaluate
    from policies.judging.explain import explain as explained
    from policies.judging.mutations import denied_by_changes
    from policies.judging.verdicts import PolicyOutcome

    need_files("judge", filenames)
    found = _load(context, folder, UNREADABLE)
    now = dt.datetime.now(dt.UTC)
    cluster = FileStore()
    inputs = read_sources(filenames, namespace, cluster.take)
    for fault in inputs.faults:
        say(str(fault))
    policies = FilePolicies(found, now, time.monotonic)
    denied = False
    objects = (document for source in inputs.sources for document in source.documents)
    for manifest in (each for document in objects for each in manifests(document, namespace)):
        for path, subject in policies.subjects(manifest, operation, cluster):
            scoped = subject.resource == "namespaces" or not subject.namespace
            place = "in the cluster" if scoped else f"in {subject.namespace}"
            pods = f"Pods of {path_text(path)} in " if path else ""
            write(f"{pods}{manifest.kind or 'object without kind'} {manifest.name or '(no name)'} {place}:\n")
            for line in explained(found, subject, now, time.monotonic):
                write(f"  {line}\n")
            verdicts = evaluate(found.validating, subject, now, time.monotonic)
            denied = denied or any(verdict.outcome is PolicyOutcome.DENY for verdict in verdicts)
            denied = denied or denied_by_changes(found.mutating, subject, time.monotonic)
    context.exit(UNREADABLE if inputs.faults else FAULTY if denied else 0)


@policy.command()
@click.argument("folder", metavar="[DIR|FILE]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--to",
    "target",
    type=click.Choice(["vap", "map"]),
    required=True,
    help="vap: ValidatingAdmissionPolicy. map: MutatingAdmissionPolicy.",
)
@click.option(
    "--instance-type",
    "types",
    multiple=True,
    metavar="NAME",
    help="map: an instance type of the cluster, such as trn2.48xlarge. May be repeated: name all of them.",
)
@namespace_option("map: a namespace whose pods are converted. May be repeated.", "namespaces", multiple=True)
@click.option("--device-class", default=names.DEVICE_CLASS, show_default=True, metavar="NAME", help="map: of claims.")
@click.pass_context
def export(
    context: click.Context,
    /,
    folder: Path | None,
    target: str,
    types: tuple[str, ...],
    namespaces: tuple[str, ...],
    device_class: str,
) -> None:
    """Print what the API server does itself, as objects for kubectl apply.

    --to vap: the policies for validation below DIR.

    --to map: policies that convert pods without the webhook, for one device, 4 and 8 connected ones and whole nodes,
    and the ResourceClaimTemplates of each namespace. They need Kubernetes 1.36. Of DIR, only InstanceTypeCatalogs are
    used. docs/how-to/without-a-webhook.md lists what such policies cannot do.

    Exit code: 0 = all are printed, 1 = some use what only the webhook has, 2 = a file cannot be read.
    """
    import yaml

    from policies.judging.export import NotExportableError, to_vap

    if target == "map":
        _export_conversion(context, folder, types, namespaces, device_class)
        return
    if folder is None or types or namespaces:
        raise click.UsageError(
            "--to vap needs DIR or FILE." if folder is None else "--instance-type and --namespace belong to --to map."
        )
    policies = _load(context, folder, UNREADABLE)
    code = FAULTY if _say_unexported(policies) else 0
    for rule in policies.validating:
        try:
            objects = to_vap(rule)
        except NotExportableError as error:
            say(f"{rule.name}: not exported: {error}.")
            code = FAULTY
        else:
            write(yaml.safe_dump_all(objects, sort_keys=False, explicit_start=True))
    context.exit(code)


def _say_unexported(policies: "PolicySet") -> bool:
    """Name the policies that steer conversion. Returns whether there are any."""
    for rule in policies.mutating:
        say(f"{rule.name}: not exported: apply its file, which is what the API server takes.")
    steering = [*(rule.name for rule in policies.conversions), *(rule.name for rule in policies.hints)]
    for name in steering:
        say(f"{name}: not exported: only the webhook follows it.")
    return bool(steering)


def _export_conversion(
    context: click.Context,
    folder: Path | None,
    types: tuple[str, ...],
    namespaces: tuple[str, ...],
    device_class: str,
) -> None:
    from commands.rewrite.mutating_policies import as_yaml
    from commands.rewrite.mutating_policies import export as exported
    from neuron.hardware.instances import Catalogue

    if not types or not namespaces:
        raise click.UsageError("--to map needs --instance-type and --namespace, each at least once.")
    policies = None if folder is None else _load(context, folder, UNREADABLE)
    catalogue = Catalogue() if policies is None else policies.catalogue
    found = {name: catalogue.get(name) for name in types}
    for name in (name for name, entry in found.items() if entry is None):
        hint = did_you_mean(name, catalogue.suggestions(name))
        raise click.UsageError(f"--instance-type: {name!r} is not in the catalogue of instance types.{hint}")
    known = [entry for entry in found.values() if entry is not None]
    result = exported(known, tuple(dict.fromkeys(namespaces)), catalogue, device_class)
    for line in result.left_out:
        say(line)
    write(as_yaml(result))
    unexported = policies is not None and _say_unexported(policies)
    context.exit(FAULTY if result.left_out or unexported else 0)


def _slow(results: "Sequence[CaseResult]", taken: float) -> str:
    """The warning about cases that take longer than the webhook gives them."""
    from policies.files.cases import CASE_SECONDS

    spent: dict[str, float] = {}
    for result in results:
        spent[result.policy] = spent.get(result.policy, 0.0) + result.seconds
    slowest = max(spent, key=lambda name: spent[name])
    return (
        f"warning: all cases together took {taken:.1f} s, of which {slowest} took {spent[slowest]:.1f} s. The webhook "
        f"refuses files whose cases are not finished after {CASE_SECONDS:g} s: write fewer cases, or smaller objects "
        "in them."
    )


def _load(context: click.Context, folder: Path, code: int, cluster: ClusterChoice | None = None) -> "PolicySet":
    """Load a folder without running its cases; on a problem, end the command with `code`.

    Raises:
        CannotLookError: the user chose a cluster, and it does not answer.
    """
    # Imported here because the engine takes long to import, and --help does not need it.
    from policies.files.folders import PolicyError, read_file, read_folder
    from policies.files.loader import load

    try:
        files = read_file(folder) if folder.is_file() else read_folder(folder)
    except PolicyError as error:
        say(str(error))
        context.exit(UNREADABLE)
    if not files:
        say(f"{folder}: no policy file (*.yaml, *.yml, *.json) is in it.")
        context.exit(UNREADABLE)
    try:
        if cluster is not None and cluster.is_chosen:
            return asyncio.run(_load_beside(files, cluster))
        return load(files, run_tests=False)
    except PolicyError as error:
        say(str(error))
        say(f"{counted(len(error.problems), 'problem')} in {counted(len(files), 'file')}.")
        context.exit(code)


async def _load_beside(files: Mapping[str, bytes], cluster: ClusterChoice) -> "PolicySet":
    from cluster.look_ups import from_thread
    from policies.files.loader import load

    async with connected(cluster) as connection:
        return await asyncio.to_thread(load, files, run_tests=False, served=from_thread(connection))


def table(results: Sequence["CaseResult"]) -> str:
    """One line per case, then the failures, then the counts."""
    width = max((len(result.policy) for result in results), default=0)
    lines = []
    for each in results:
        lines.append(f"{'FAIL' if each.failure else 'pass'}  {each.policy:<{width}}  {each.case}")
        lines += [f"      {line}" for line in _changes(each)]
    lines += [f"\n{each.failure}" for each in results if each.failure]
    failed = sum(1 for each in results if each.failure)
    lines.append(f"{counted(len(results), 'case')}, {failed} failed.")
    return "".join(f"{line}\n" for line in lines)


def _changes(result: "CaseResult") -> list[str]:
    """The object before and after, as the lines that differ with one line around them."""
    import yaml

    if result.before is None:
        return []
    before, after = (yaml.safe_dump(each, sort_keys=False).splitlines() for each in (result.before, result.after))
    return list(difflib.unified_diff(before, after, "before", "after", n=1, lineterm=""))


def junit_xml(results: Sequence["CaseResult"]) -> bytes:
    """The results as JUnit XML: one suite per policy."""
    root = ET.Element("testsuites", name="neuron-dra policy test")
    for name in dict.fromkeys(each.policy for each in results):
        mine = _cases(results, name)
        suite = ET.SubElement(
            root,
            "testsuite",
            name=name,
            tests=str(len(mine)),
            failures=str(sum(1 for each in mine if each.failure)),
            time=f"{sum(each.seconds for each in mine):.6f}",
        )
        for each in mine:
            case = ET.SubElement(suite, "testcase", classname=name, name=each.case, time=f"{each.seconds:.6f}")
            if each.failure is not None:
                failure = ET.SubElement(case, "failure", message=_printable(each.failure.message))
                failure.text = _printable(str(each.failure))
    ET.indent(root)
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return text


def _printable(text: str) -> str:
    """The text without control characters, which XML 1.0 does not allow."""
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def _cases(results: Sequence["CaseResult"], name: str) -> list["CaseResult"]:
    return [each for each in results if each.policy == name]
