"""`neuron-dra cordon`, `drain` and `uncordon`: takes devices out of use, and gives them back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final

import click

from commands.cli.clusters import CannotLookError, ClusterChoice, cluster_options, connected
from commands.cli.streams import say, write

if TYPE_CHECKING:
    from commands.cordon.operator import Operator, Scene

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

    async def work(operator: "Operator", scene: "Scene") -> str:
        from commands.cordon import render

        return render.cordoned(await operator.cordon(scene))

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

    async def work(operator: "Operator", scene: "Scene") -> str:
        nonlocal done
        from commands.cordon import render

        write(render.plan(scene, await operator.owners(scene.evicted)))
        if not yes:
            done = False
            say("Nothing was changed. Add --yes to drain.")
            return ""
        by, left = await operator.drain(scene, timeout)
        done = not left
        return render.drained(by, left, timeout)

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

    async def work(operator: "Operator", scene: "Scene") -> str:
        from commands.cordon import render

        done = await operator.uncordon(scene)
        return render.uncordoned(scene, await operator.look(scene.target, must_exist=False), done=done)

    write(asyncio.run(_work(target, cluster, work, must_exist=False)))


async def _work(
    text: str,
    cluster: ClusterChoice,
    work: "Callable[[Operator, Scene], Awaitable[str]]",
    *,
    must_exist: bool = True,
) -> str:
    from commands.cordon.operator import CannotCordonError
    from commands.cordon.targets import TargetError, parse

    try:
        target = parse(text)
        async with _operator(cluster) as operator:
            return await work(operator, await operator.look(target, must_exist=must_exist))
    except (TargetError, CannotCordonError) as error:
        raise CannotLookError(f"{str(error)[:1].upper()}{str(error)[1:]}") from error


@contextlib.asynccontextmanager
async def _operator(cluster: ClusterChoice) -> AsyncIterator["Operator"]:
    from commands.cordon.operator import Operator

    async with connected(cluster) as server:
        yield Operator(server, server.address, say=say)
