"""`neuron-dra cordon`, `drain` and `uncordon`: takes devices out of use, and gives them back."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import click

from commands.cli.clusters import CannotLookError, ClusterChoice, cluster_options, connected
from commands.cli.streams import say, write
from commands.cordon import (
    NO_SCHEDULE,
    CannotCordonError,
    Operator,
    PodUse,
    Scene,
    TargetError,
    closed_devices,
    cordon_rules,
    cordoned_by,
    device_names,
    parse_target,
)
from neuron import names
from neuron.api.slices import read_rule
from neuron.findings import few
from runtime.text import aligned, counted, named

NOT_DONE: Final = 1
TIMEOUT: Final = 300.0

_TARGET: Final = click.argument("target", metavar="NODE[/DEVICE]")


@click.command
@_TARGET
@cluster_options
def cordon(target: str, cluster: ClusterChoice) -> None:
    """Keep new claims off the devices of a node, or off one device. Pods that use them go on.

    DEVICE is a name as `neuron-dra map` shows it, or its number. Where the API server serves DeviceTaintRules, a rule
    taints the devices; elsewhere an annotation of the Node tells the driver.

    Exit codes: 0; 2 if the cluster cannot be read, or a permission is missing.
    """

    async def work(operator: Operator, scene: Scene) -> str:
        return cordoned(await operator.cordon(scene))

    write(asyncio.run(_work(target, cluster, work)))


@click.command
@_TARGET
@cluster_options
@click.option("--yes", is_flag=True, help="Drain. Without it, the pods are shown and nothing is changed.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=TIMEOUT,
    show_default=True,
    metavar="SECONDS",
    help="Longest time to wait until the pods are gone.",
)
@click.pass_context
def drain(context: click.Context, /, target: str, cluster: ClusterChoice, yes: bool, timeout: float) -> None:
    """Cordon the devices of a node, or one device, and evict the pods that use them.

    Shows first which pods. Where the API server serves DeviceTaintRules, Kubernetes deletes the pods because of the
    taint's effect NoExecute; elsewhere each pod is evicted, and PodDisruptionBudgets count.

    Exit codes: 0; 1 if pods are not evicted: without --yes, or because they are still there after --timeout; 2 if the
    cluster cannot be read, or a permission is missing.
    """
    done = True

    async def work(operator: Operator, scene: Scene) -> str:
        nonlocal done
        write(plan(scene, await operator.owners(scene.evicted)))
        if not yes:
            done = False
            say("Nothing was changed. Add --yes to drain.")
            return ""
        by, left = await operator.drain(scene, timeout)
        done = not left
        return drained(by, left, timeout)

    write(asyncio.run(_work(target, cluster, work)))
    context.exit(0 if done else NOT_DONE)


@click.command
@_TARGET
@cluster_options
def uncordon(target: str, cluster: ClusterChoice) -> None:
    """Let new claims get the devices again. Removes only what `cordon` and `drain` wrote for the same target.

    Cordons of single devices outlast that of their node. What else keeps claims off the devices is printed.

    Exit codes: 0; 2 if the cluster cannot be read, or a permission is missing.
    """

    async def work(operator: Operator, scene: Scene) -> str:
        done = await operator.uncordon(scene)
        return uncordoned(scene, await operator.look(scene.target, must_exist=False), done=done)

    write(asyncio.run(_work(target, cluster, work, must_exist=False)))


async def _work(
    text: str,
    cluster: ClusterChoice,
    work: Callable[[Operator, Scene], Awaitable[str]],
    *,
    must_exist: bool = True,
) -> str:
    try:
        target = parse_target(text)
        async with connected(cluster) as server:
            operator = Operator(server, server.address, say=say)
            return await work(operator, await operator.look(target, must_exist=must_exist))
    except (TargetError, CannotCordonError) as error:
        raise CannotLookError(f"{str(error)[:1].upper()}{str(error)[1:]}") from error


# --- what is printed --------------------------------------------------------------------------------------------------


def how(scene: Scene) -> str:
    """The objects that cordon the devices, for the output."""
    if scene.by_rules is None:
        return f"annotation of Node {scene.target.node}"
    rules = cordon_rules(scene.target, scene.pool, scene.whole, scene.by_rules, NO_SCHEDULE)
    shown = [rule["metadata"]["name"] for rule in rules]
    return f"DeviceTaintRule{'s' if len(shown) > 1 else ''} {', '.join(shown)}"


def cordoned(scene: Scene) -> str:
    """The result of a cordon."""
    count = len(scene.users)
    rest = "No pod uses them."
    if count:
        shown = few([str(each) for each in scene.users], 5)
        word = "pod uses" if count == 1 else "pods use"
        rest = f"{count} {word} them and {'goes' if count == 1 else 'go'} on: {shown}. `neuron-dra drain` evicts."
    return f"Cordoned {scene.target.words} ({how(scene)}): new claims do not get them. {rest}\n"


def plan(scene: Scene, owners: Mapping[str, str]) -> str:
    """Whom a drain evicts, and who stays."""
    evicted = scene.evicted
    lines = []
    if evicted:
        lines.append(f"A drain of {scene.target.words} evicts {counted(len(evicted), 'pod')}:")
        rows = [
            (each.namespace, each.name, named(owner) if owner else "-", few(each.claims, 1), few(each.devices, 3))
            for each in evicted
            for owner in [owners.get(each.uid)]
        ]
        lines += aligned([("NAMESPACE", "POD", "OWNER", "CLAIM", "DEVICES"), *rows])
    else:
        lines.append(f"A drain of {scene.target.words} evicts no pod.")
    if stays := [str(each) for each in scene.users if each.stays]:
        lines.append(f"Pods that stay, because their claims tolerate the taint: {few(stays, 5)}.")
    if evicted and scene.by_rules is not None:
        lines.append("By a DeviceTaintRule, Kubernetes deletes the pods at once: PodDisruptionBudgets do not count.")
    elif evicted:
        lines.append("The pods are evicted one by one: PodDisruptionBudgets count.")
    if lost := [str(each) for each in evicted if owners.get(each.uid) == ""]:
        lines.append(f"Nothing creates these pods again: {few(lost, 5)}.")
    return "".join(f"{line}\n" for line in lines)


def drained(scene: Scene, left: Sequence[PodUse], within: float) -> str:
    """The result of a drain."""
    if not left:
        return f"Drained {scene.target.words} ({how(scene)}).\n"
    shown = few([str(each) for each in left], 5)
    why = "" if scene.by_rules is not None else " A PodDisruptionBudget may forbid their eviction."
    return (
        f"Cordoned {scene.target.words} ({how(scene)}); after {within:g} s {counted(len(left), 'pod')} "
        f"{'is' if len(left) == 1 else 'are'} still there: {shown}.{why}\n"
    )


def uncordoned(before: Scene, after: Scene, *, done: bool) -> str:
    """The result of an uncordon: what else keeps claims off the devices is said, too."""
    target = before.target
    lines = [f"Uncordoned {target.words}." if done else f"No cordon of {target.words} was found."]
    cordons = {cordoned_by(rule) for rule in after.rules} | {
        *(f"{target.node}/{device}" for device in after.cordon.devices),
        *([target.node] if after.cordon.node else []),
    }
    if target.device and target.node in cordons:
        lines.append(f"Node {target.node} is still cordoned: neuron-dra uncordon {target.node}")
    if not target.device:
        singles = sorted(each for each in cordons if each.startswith(f"{target.node}/"))
        lines += [f"{each.partition('/')[2]} is still cordoned: neuron-dra uncordon {each}" for each in singles]
    foreign = [named(each["metadata"]["name"]) for each in after.rules if _is_foreign_and_closes(each, after)]
    lines += [
        f"DeviceTaintRule {each} taints it, which neuron-dra did not write: kubectl delete devicetaintrule {each}"
        for each in foreign
    ]
    return "".join(f"{line}\n" for line in lines)


def _is_foreign_and_closes(rule: Mapping[str, object], scene: Scene) -> bool:
    """Whether a rule that this program did not write taints devices of the target."""
    if cordoned_by(rule):
        return False
    try:
        known = read_rule(rule)
    except (KeyError, TypeError, AttributeError):
        return False
    devices = closed_devices(scene.target, scene.whole) or device_names(scene.node)
    return known is not None and any(known.selects(names.DRIVER, scene.pool, device) for device in devices)
