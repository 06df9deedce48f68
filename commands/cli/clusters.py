"""Options of commands that read a cluster: which cluster, with which credentials, which namespace. As kubectl's."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import yaml

from neuron import names
from runtime import kubeconfigs

if TYPE_CHECKING:
    from runtime.api_transport import Connection

CANNOT_LOOK: Final = 2
_TIMEOUT: Final = 15.0
_WITHOUT_KUBECONFIG: Final = "give --kubeconfig or set $KUBECONFIG"


class CannotLookError(click.ClickException):
    """Ends the command with one line on stderr."""

    exit_code = CANNOT_LOOK


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterChoice:
    """The cluster that the user chose; None: the default of `kubectl`."""

    kubeconfig: Path | None = None
    context: str | None = None

    @property
    def is_chosen(self) -> bool:
        """Whether the user named a cluster at all: some commands read one only then."""
        return self.kubeconfig is not None or self.context is not None

    @property
    def name(self) -> str:
        """What a report of several clusters calls it."""
        return self.context or ("the current context" if self.kubeconfig is None else str(self.kubeconfig))

    @property
    def files(self) -> tuple[Path, ...]:
        """The kubeconfig files to merge; empty: the service account of this pod.

        Raises:
            CannotLookError: a context was chosen, and there is no file that could have it; or no file of $KUBECONFIG
                exists, and this is no pod.
        """
        found = (self.kubeconfig,) if self.kubeconfig is not None else kubeconfigs.find(os.environ)
        missing = kubeconfigs.named(os.environ)
        if not found and missing and not os.environ.get("KUBERNETES_SERVICE_HOST"):
            which = f"the file {missing[0]}, which does" if len(missing) == 1 else f"{_listed(missing)}, which do"
            raise CannotLookError(f"$KUBECONFIG names {which} not exist: correct it, or give --kubeconfig")
        if self.context is not None and not found:
            raise CannotLookError(f"--context {self.context} needs a kubeconfig: give --kubeconfig or set $KUBECONFIG")
        return found

    def namespace(self, chosen: str | None) -> str:
        """The namespace of `-n`; without it, that of the context, or `default`.

        Raises:
            CannotLookError: a kubeconfig cannot be read.
        """
        if chosen:
            return chosen
        try:
            return kubeconfigs.namespace(self.files, self.context)
        except OSError as error:
            raise CannotLookError(f"cannot read {error.filename}: {error.strerror}") from error
        except yaml.YAMLError as error:
            raise CannotLookError(f"kubeconfig {_listed(self.files)} is not YAML: {error}") from error


def _listed(files: Iterable[Path]) -> str:
    return ", ".join(map(str, files))


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """`--kubeconfig` and `--context`, passed to the command as `cluster`."""
    return _cluster_options(
        command,
        "Cluster and credentials. Default: the files in $KUBECONFIG, merged, else ~/.kube/config, else the cluster that"
        " this runs in.",
        "Context of the kubeconfig. Default: its current context.",
    )


def several_clusters_options(command: Callable[..., None]) -> Callable[..., None]:
    """The same with several contexts, passed as `clusters`: one, or one for each context."""
    return _cluster_options(
        command,
        "Clusters and credentials. Default: the files in $KUBECONFIG, merged, else ~/.kube/config, else the cluster"
        " that this runs in.",
        "Context of the kubeconfig. Default: its current context. May be repeated: several clusters in one report.",
        several=True,
    )


def optional_cluster_options(purpose: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The same for a command that reads a cluster only if the user names one (`ClusterChoice.is_chosen`).

    Args:
        purpose: what the command does with it, as the beginning of a sentence.
    """
    return lambda command: _cluster_options(
        command,
        f"{purpose} the cluster of this kubeconfig.",
        f"{purpose} the cluster of this context; without --kubeconfig, of $KUBECONFIG or ~/.kube/config.",
    )


def _cluster_options(
    command: Callable[..., None], kubeconfig_help: str, context_help: str, *, several: bool = False
) -> Callable[..., None]:
    @functools.wraps(command)
    def with_cluster(*args: object, kubeconfig: Path | None, context_name: Any, **options: object) -> None:
        if several:
            chosen = tuple(ClusterChoice(kubeconfig, each) for each in dict.fromkeys(context_name))
            command(*args, clusters=chosen or (ClusterChoice(kubeconfig),), **options)
        else:
            command(*args, cluster=ClusterChoice(kubeconfig, context_name), **options)

    which = click.option(
        "--context",
        "context_name",
        multiple=several,
        metavar="NAME",
        help=context_help,
        shell_complete=_complete_context,
    )
    where = click.option(
        "--kubeconfig", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help=kubeconfig_help
    )
    return where(which(with_cluster))


def _complete_context(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Contexts of the kubeconfigs; none if they cannot be read: a shell shows no errors."""
    try:
        known = kubeconfigs.context_names(ClusterChoice(context.params.get("kubeconfig")).files)
    except (OSError, yaml.YAMLError, CannotLookError):
        return []
    return [name for name in known if name.startswith(incomplete)]


def namespace_name(text: str) -> str:
    """A namespace's name, as click's type.

    Raises:
        click.BadParameter: it is not a valid name. An empty value, as from an unset variable in a script, is refused.
    """
    if not names.DNS_LABEL.fullmatch(text):
        raise click.BadParameter(
            f"{text!r} is not a valid namespace name: use at most 63 characters of a-z, 0-9 and -."
        )
    return text


def namespace_option(
    help_text: str, name: str = "namespace", **attributes: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`-n` / `--namespace`, passed to the command as `name`: None if it is not set (`ClusterChoice.namespace`).

    Args:
        attributes: further ones of `click.option`, such as a default.
    """
    return click.option("-n", "--namespace", name, type=namespace_name, metavar="NAME", help=help_text, **attributes)


@contextlib.asynccontextmanager
async def connected(cluster: ClusterChoice, *, must_answer: bool = True) -> AsyncIterator["Connection"]:
    """Connect to the API server of a cluster.

    Args:
        must_answer: whether it must answer now. All commands report in the same words that it does not.

    Raises:
        CannotLookError: on entering: the configuration cannot be used, or the server does not answer.
    """
    # Importing the client takes half a second, which --help does not need.
    from runtime.api_server import ApiServerError, ClusterUnavailableError, UnreachableError
    from runtime.api_transport import Connection, load_configuration

    files = cluster.files
    try:
        connection = await Connection.open(
            lambda: load_configuration(files, cluster.context, otherwise=_WITHOUT_KUBECONFIG)
        )
    except ClusterUnavailableError as error:
        raise CannotLookError(str(error)) from error
    try:
        if must_answer:
            try:
                await connection.request("GET", "/version", timeout=_TIMEOUT)
            except UnreachableError as error:
                raise CannotLookError(f"{error}.") from error
            except ApiServerError:
                pass  # It answers: the command reports what it may not read.
        yield connection
    finally:
        await connection.close()
