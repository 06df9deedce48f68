"""Options of commands that read a cluster: which cluster, with which credentials."""

import contextlib
import dataclasses
import functools
import os
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from runtime.api_transport import Connection

CANNOT_LOOK: Final = 2

_NAMESPACE: Final = re.compile(r"(?=.{1,63}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class CannotLookError(click.ClickException):
    """Ends the command with one line on stderr."""

    exit_code = CANNOT_LOOK


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterChoice:
    """The cluster that the user chose; None: the default of `kubectl`."""

    kubeconfig: Path | None
    context: str | None


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """`--kubeconfig` and `--context`, passed to the command as `cluster`."""

    @functools.wraps(command)
    def with_cluster(*args: Any, kubeconfig: Path | None, context_name: str | None, **options: Any) -> None:
        command(*args, cluster=ClusterChoice(kubeconfig, context_name), **options)

    which = click.option("--context", "context_name", metavar="NAME", help="Context of the kubeconfig.")
    where = click.option(
        "--kubeconfig",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Cluster and credentials. Default: $KUBECONFIG, then ~/.kube/config, then the cluster that this runs in.",
    )
    return where(which(with_cluster))


def namespace_name(text: str) -> str:
    """A namespace's name, as click's type.

    Raises:
        click.BadParameter: it is not a valid name. An empty value, as from an unset variable in a script, is refused.
    """
    if not _NAMESPACE.fullmatch(text):
        raise click.BadParameter(
            f"{text!r} is not a valid namespace name: use at most 63 characters of a-z, 0-9 and -."
        )
    return text


def default_kubeconfig() -> Path | None:
    """The file that kubectl would use, or None. Of several files in $KUBECONFIG, the first that exists."""
    named = [Path(each) for each in os.environ.get("KUBECONFIG", "").split(os.pathsep) if each]
    # In a container the user may have no home directory.
    home = os.environ.get("HOME", "")
    candidates = named or ([Path(home) / ".kube" / "config"] if home else [])
    return next((path for path in candidates if path.exists()), None)


@contextlib.asynccontextmanager
async def connected(cluster: ClusterChoice) -> AsyncIterator["Connection"]:
    """Connect to the API server of a cluster.

    Raises:
        CannotLookError: on entering: the configuration cannot be used.
    """
    # Importing the client takes half a second, which --help does not need.
    from runtime.api_errors import ClusterUnavailableError
    from runtime.api_transport import Connection, load_configuration

    file = cluster.kubeconfig or default_kubeconfig()
    try:
        connection = await Connection.open(lambda: load_configuration(file, cluster.context))
    except ClusterUnavailableError as error:
        raise CannotLookError(str(error)) from error
    try:
        yield connection
    finally:
        await connection.close()
