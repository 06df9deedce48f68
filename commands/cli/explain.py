"""`neuron-dra explain`: what becomes of a pod, where it could run now, and why it does not run."""

import asyncio
import dataclasses
import datetime as dt
import difflib
import itertools
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from commands.cli.clusters import CannotLookError, ClusterChoice, cluster_options, connected, namespace_option
from commands.cli.inputs import (
    CONVERSION_SETTINGS,
    REFUSED,
    UNREADABLE,
    built,
    is_manifest,
    kustomize_option,
    load_settings,
    names_file,
    setting_options,
)
from commands.cli.streams import output_option, say, write, write_all
from conversion.objects.kinds import KINDS
from runtime import console
from runtime.console import wrapped

if TYPE_CHECKING:
    from commands.explain.admission_preview import Chosen
    from commands.explain.explaining import Explainer
    from commands.explain.explanation import Explanation
    from commands.explain.reads import Live, Reads, StoredPod
    from commands.objects.file_policies import FilePolicies
    from commands.objects.manifest_files import ManifestSource
    from commands.objects.manifests import Manifest
    from conversion.asks.conversion_context import ConversionOptions

_OVERRIDING: Final = {
    "mode": "mode",
    "device_class": "device_class",
    "exclude_namespace": "excluded_namespaces",
    "families": "families",
    "kubernetes_version": "kubernetes_version",
}
"""Flags that count before the settings of the cluster's webhook -> fields of `ConversionOptions`."""
_BY_FLAG: Final = "--mode of this command"
_CODE: Final = re.compile(r"neu\d+", re.IGNORECASE | re.ASCII)
ASSUMED: Final = "the default of this command (--mode); the webhook's may differ"
_NOT_KNOWN: Final = "assumed (--mode): the settings of the webhook are not known"


POD: Final = ("", "Pod")
MOST_PODS: Final = 3
"""Pods of one workload that are explained."""
_SHORT: Final = {
    "po": POD,
    "rc": ("", "ReplicationController"),
    "deploy": ("apps", "Deployment"),
    "ds": ("apps", "DaemonSet"),
    "rs": ("apps", "ReplicaSet"),
    "sts": ("apps", "StatefulSet"),
    "cj": ("batch", "CronJob"),
}
"""kubectl's short names."""


@dataclasses.dataclass(frozen=True, slots=True)
class NamedObject:
    """An object of the cluster that is to be explained."""

    kind: tuple[str, str]
    name: str

    def __str__(self) -> str:
        return f"{self.kind[1]} {self.name}"


@click.command
@click.argument("words", metavar="[TYPE/NAME | TYPE NAME | FILE | CODE]...", nargs=-1)
@click.option(
    "-f",
    "--filename",
    "filenames",
    multiple=True,
    metavar="FILE|DIR|-",
    help="Manifests with pods or workloads: a file, a directory, or - for standard input. May be repeated."
    " The same can be given as arguments; where a file and a pod have one name, pod/NAME is the pod.",
)
@kustomize_option("explain")
@cluster_options
@namespace_option("Namespace of the pods, and of objects in files that set none. Default: that of the context.")
@output_option()
@setting_options("mode", *CONVERSION_SETTINGS)
@click.pass_context
def explain(
    context: click.Context,
    /,
    words: tuple[str, ...],
    filenames: tuple[str, ...],
    directories: tuple[str, ...],
    cluster: ClusterChoice,
    namespace: str | None,
    output: str,
    **flags: object,
) -> None:
    """Explain pods: what they request, what conversion and policies make of them, and which nodes could take them.

    With files alone, no cluster is read. With files and --kubeconfig or --context, the cluster's namespaces, quotas,
    devices and nodes count, too. pod/NAME explains a pod of the cluster: if it does not run, why, and what to do.
    Another type with pods, as in deployment/NAME or job NAME, explains the pods that it creates, and its pods that are
    not ready. A code such as NEU105 prints what the message with that code means.

    Exit codes: 0; 1 if a pod is refused, or does not run; 2 if an input or the cluster cannot be read.
    """
    if words and all(map(_CODE.fullmatch, words)):
        write("\n".join(map(_told, words)))
        return
    names, files = _targets(words)
    filenames = (*filenames, *files)
    if not names and not filenames and not directories:
        raise click.UsageError("Name a pod or a workload (pod/NAME, deployment/NAME), or files, or a code (NEU105).")
    options, policies = load_settings(flags)
    given = {name for name in _OVERRIDING if flags.get(name) not in (None, ())}
    # Imported here so that `--help` is fast.
    from commands.explain import render
    from commands.objects.manifest_files import read_sources
    from commands.objects.manifests import DEFAULT_NAMESPACE

    here = cluster.namespace(namespace) if names or cluster.is_chosen else namespace or DEFAULT_NAMESPACE
    facts: list[Manifest] = []
    inputs = read_sources([*filenames, *built(directories)], here, facts.append, command="explain")
    for fault in inputs.faults:
        say(str(fault))
    run = _Run(options, given, policies, inputs.sources, facts)
    live = bool(names) or cluster.is_chosen
    explainer, found = asyncio.run(run.live(cluster, here, names)) if live else run.offline(here)
    # Text keeps less of each pod than its explanation, and reads all of them before its first page.
    pages = render.as_json(list(found)) if output == "json" else render.as_text(found, console.style(os.environ))
    first = list(itertools.islice(pages, 1))
    for line in explainer.unread:
        say(line)
    if inputs.sources and not names and not explainer.pods:
        say("Nothing to explain: the files contain no pod, and no workload with pods.")
    write_all(itertools.chain(first, pages))
    context.exit(UNREADABLE if inputs.faults or run.missing else REFUSED if explainer.blocked else 0)


def _told(word: str) -> str:
    from neuron.codes import CODES

    code = word.upper()
    if code not in CODES:
        near = difflib.get_close_matches(code, CODES, n=3, cutoff=0.6)
        raise click.UsageError(f"{code} is no code of neuron-dra. Codes like it: {', '.join(near) or 'none'}.")
    found = CODES[code]
    parts = [f"{code}: {found.title}.", found.why, found.fix, f"Example: {found.message}"]
    return "\n".join(f"{wrapped(each, 0, console.width())}\n" for each in parts if each)


def _targets(words: Sequence[str]) -> tuple[list[NamedObject], list[str]]:
    """What arguments name: objects of the cluster, and files.

    Raises:
        click.UsageError: a word is neither.
    """
    files = [each for each in words if names_file(each) and (is_manifest(each) or not _kind(each.partition("/")[0]))]
    return _named([each for each in words if each not in files]), files


class _Run:
    """One run of the command: its settings, and the explanations that follow."""

    def __init__(
        self,
        options: "ConversionOptions",
        given: set[str],
        policies: "FilePolicies | None",
        sources: "Sequence[ManifestSource]",
        facts: "Sequence[Manifest]",
    ) -> None:
        self._options = options
        self._given = given
        self._policies = policies
        self._sources = sources
        self._facts = facts
        self.missing = False

    def offline(self, namespace: str) -> "tuple[Explainer, Iterator[Explanation]]":
        from commands.explain.admission_preview import Chosen
        from commands.explain.explaining import Explainer

        default = _BY_FLAG if "mode" in self._given else ASSUMED
        chosen = Chosen(self._options, default, self._policies)
        explainer = Explainer(chosen, self._sources, self._facts, None, namespace)
        return explainer, explainer.files()

    async def live(
        self, cluster: ClusterChoice, namespace: str, named: Sequence[NamedObject]
    ) -> "tuple[Explainer, Iterable[Explanation]]":
        from commands.cluster.reader import ClusterReader
        from commands.explain.explaining import Explainer
        from commands.explain.reads import CannotExplainError, Reads, StoredPod
        from commands.objects.manifests import manifests
        from runtime.api_server import ApiServerError

        async with connected(cluster) as server:
            reads = Reads(ClusterReader(server), server.address)
            documents = (document for source in self._sources for document in source.documents)
            objects = (each for document in documents for each in manifests(document, namespace))
            namespaces = {each.namespace for each in objects} | {namespace}
            try:
                live = await reads.live(sorted(namespaces))
                stored = [each for target in named for each in await self._stored(reads, target, namespace)]
            except (CannotExplainError, ApiServerError) as error:
                raise CannotLookError(f"{server.address} cannot be read: {error}") from error
        explainer = Explainer(self._chosen(live), self._sources, self._facts, live, namespace)
        found = list(explainer.files())
        for each in stored:
            found += [explainer.pod(each)] if isinstance(each, StoredPod) else explainer.workload(each)
        return explainer, found

    async def _stored(self, reads: "Reads", target: NamedObject, namespace: str) -> "list[Manifest | StoredPod]":
        """What a target is in the cluster: a pod, or a workload and its pods that are not ready."""
        if target.kind == POD:
            pod = await reads.pod(namespace, target.name)
            if pod.pod is not None:
                return [pod]
        else:
            workload = await reads.workload(target.kind, namespace, target.name)
            if workload is not None:
                names = await reads.waiting(workload)
                if len(names) > MOST_PODS:
                    say(f"{len(names):,} pods of {target} are not ready: the first {MOST_PODS} are explained.")
                pods = [await reads.pod(namespace, name) for name in names[:MOST_PODS]]
                return [workload, *(each for each in pods if each.pod is not None)]
        say(f"{target.kind[1]} {namespace}/{target.name} does not exist. -n names another namespace.")
        self.missing = True
        return []

    def _chosen(self, live: "Live") -> "Chosen":
        """The settings of the cluster's webhook, with those that the user gave."""
        from commands.explain.admission_preview import Chosen

        options, default = self._options, _NOT_KNOWN
        if live.installation.options is not None:
            changes = {_OVERRIDING[name]: getattr(options, _OVERRIDING[name]) for name in self._given}
            options = dataclasses.replace(live.installation.options, **changes)
            default = live.installation.default
        default = _BY_FLAG if "mode" in self._given else default
        return Chosen(options, default, self._policies or _loaded(live, options.device_class))


def _loaded(live: "Live", device_class: str) -> "FilePolicies | None":
    if not live.policy_files:
        return None
    from commands.objects.file_policies import FilePolicies
    from policies.files.folders import PolicyError
    from policies.files.loader import load

    try:
        found = load(live.policy_files, run_tests=False)
    except PolicyError as error:
        say(f"The policies of the webhook cannot be read, and are left out: {error}")
        return None
    return FilePolicies(found, dt.datetime.now(dt.UTC), time.monotonic, device_class)


# --- which objects a command line names, as kubectl reads it: pod/NAME, deploy/NAME, job NAME -------------------------


def _named(words: Sequence[str]) -> list[NamedObject]:
    """The objects that words name, if any: `TYPE/NAME`, `TYPE NAME` or, of a pod, `NAME`.

    Raises:
        click.UsageError: a type holds no pods or is not known, or a name is empty.
    """
    known = POD
    if len(words) > 1 and not any("/" in word for word in words):
        first = _kind(words[0])
        known, words = (POD, words) if first is None else (first, words[1:])
    elif len(words) == 1 and _kind(words[0]) is not None:
        raise click.UsageError(f"{words[0]} is a type: add the name of an object, as in {words[0]}/NAME.")
    return [_target(word, known) for word in words]


def _target(word: str, known: tuple[str, str]) -> NamedObject:
    kind_word, slash, name = word.rpartition("/")
    kind = _kind(kind_word) if slash else known
    if kind is None:
        raise click.UsageError(
            f"{word}: {kind_word} is no type of objects with pods that is known here. For another object: kubectl get"
            f" {word} -o yaml | neuron-dra explain -f -"
        )
    if not name:
        raise click.UsageError(f"{word} has no name.")
    return NamedObject(kind, name)


def _kind(word: str) -> tuple[str, str] | None:
    """The kind of `deployment`, `Deployments`, `deploy`, `deployment.apps`; of several groups the first in `KINDS`."""
    wanted, _, group = word.lower().partition(".")
    if not group and wanted in _SHORT:
        return _SHORT[wanted]
    found = (key for key, kind in KINDS.items() if wanted in (kind.kind.lower(), kind.plural))
    return next((key for key in found if not group or key[0] == group), None)
