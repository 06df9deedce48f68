"""Options of commands that look at a cluster: which one, and as whom."""

import contextlib
import os
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from webhook.cluster.kube import Connection

CANNOT_LOOK: Final = 2

_NAMESPACE: Final = re.compile(r"(?=.{1,63}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class CannotLookError(click.ClickException):
    """Ends the command with one line on stderr."""

    exit_code = CANNOT_LOOK


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """`--kubeconfig` and `--context`, as `kubeconfig` and `context_name`."""
    which = click.option("--context", "context_name", metavar="NAME", help="Context of the kubeconfig.")
    where = click.option(
        "--kubeconfig",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Which cluster, and as whom; without it, $KUBECONFIG, ~/.kube/config, or the cluster that this runs in.",
    )
    return where(which(command))


def namespace_name(text: str) -> str:
    """A namespace's name, as click's type.

    Raises:
        click.BadParameter: no namespace can be called that; of an empty variable in a script, nothing is to be guessed.
    """
    if not _NAMESPACE.fullmatch(text):
        raise click.BadParameter(f"{text!r} is no name of a namespace: at most 63 of a-z, 0-9 and -.")
    return text


def default_kubeconfig() -> Path | None:
    """The file that kubectl would take; None where there is none. Of several in $KUBECONFIG, the first that exists."""
    named = [Path(each) for each in os.environ.get("KUBECONFIG", "").split(os.pathsep) if each]
    # In a container the user may have no home directory.
    home = os.environ.get("HOME", "")
    candidates = named or ([Path(home) / ".kube" / "config"] if home else [])
    return next((path for path in candidates if path.exists()), None)


@contextlib.asynccontextmanager
async def connected(kubeconfig: Path | None, context_name: str | None) -> AsyncIterator["Connection"]:
    """The API server that the options name, for as long as the context is open.

    Raises:
        CannotLookError: on entering: there is none to ask.
    """
    # The client alone takes half a second to load: not for --help.
    from webhook.cluster import kube

    file = kubeconfig or default_kubeconfig()
    try:
        connection = await kube.Connection.open(lambda: kube.load_configuration(file, context_name))
    except kube.ClusterUnavailableError as error:
        raise CannotLookError(str(error)) from error
    try:
        yield connection
    finally:
        await connection.close()
