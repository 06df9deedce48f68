"""One cluster: the connection to its API server, the view of the cluster and the template store.

The only module that imports the `kubernetes` client, and only if a cluster is used. It uses the client's transport,
kubeconfig and service account handling, but not its models.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import email.utils
import logging
import os
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from webhook.cluster.answers import Sent, content_of, status_of
from webhook.cluster.api import JSON, UNAUTHORIZED, UnreachableError
from webhook.cluster.caches import KubeCluster
from webhook.cluster.events import EventRecorder
from webhook.cluster.reflector import Reflector, Timing
from webhook.cluster.templates import KubeTemplates, TemplateCounters
from webhook.decisions.ports import TemplateStore, WorldView

if TYPE_CHECKING:
    from kubernetes.aio.client.api_client import ApiClient
    from kubernetes.aio.client.configuration import Configuration

log = logging.getLogger(__name__)

_USER_AGENT: Final = "neuron-dra-webhook"
_CONNECT_TIMEOUT: Final = 10.0
_RENEWAL_INTERVAL: Final = 10.0
_SKEW_NOTED: Final = dt.timedelta(minutes=1)
"""A larger difference of clocks is logged; certificates are backdated by five minutes."""
_QUICK: Final = dt.timedelta(seconds=2)
_HALF_A_SECOND: Final = dt.timedelta(seconds=0.5)


class ClusterUnavailableError(Exception):
    """The cluster cannot be used; the message has the reason and the fix."""


@dataclasses.dataclass(frozen=True, slots=True)
class KubeWorld:
    """A cluster, while the context of `connect` is open.

    Attributes:
        connection: to its API server.
        view: of the cluster.
        templates: the store of ResourceClaimTemplates.
        caches: of `view`; metrics read their counters and problems.
        template_counters: for metrics.
        refusals: writes Events about refused conversions; None if Events are off.
    """

    connection: "Connection"
    view: WorldView
    templates: TemplateStore
    caches: tuple[Reflector[Any], ...]
    template_counters: TemplateCounters = dataclasses.field(default_factory=TemplateCounters)
    refusals: EventRecorder | None = None

    def ready(self) -> tuple[bool, str]:
        """Whether every cache was filled once, and the present problems.

        A cache that falls behind later does not make a replica unready: its content stays right for nearly all pods,
        and if all replicas were unready, every Neuron pod would be denied (`failurePolicy: Fail`).
        """
        missing = [str(cache.resource) for cache in self.caches if not cache.synced.is_set()]
        problems = "; ".join(dict.fromkeys(cache.problem for cache in self.caches if cache.problem))
        if missing:
            return False, f"not seen yet: {', '.join(missing)}" + (f"; {problems}" if problems else "")
        return True, problems


@contextlib.asynccontextmanager
async def connect(
    kubeconfig: Path | None,
    *,
    context: str | None = None,
    sync_timeout: float = 30.0,
    create_budget: float = 2.0,
    timing: Timing | None = None,
    events: bool = False,
) -> AsyncIterator[KubeWorld]:
    """Watch a cluster for as long as the context is open.

    Args:
        kubeconfig: file that names the cluster; None: the cluster in which this process runs.
        context: context of the kubeconfig; None: its current context.
        sync_timeout: seconds to wait until every cache was filled once, or is at least being filled.
        create_budget: time-out in seconds for the creation of a ResourceClaimTemplate; below that of the webhook.
        timing: of list-watch.
        events: whether to write Events about refused conversions.

    Raises:
        ClusterUnavailableError: on entering: the cluster cannot be reached, refuses the credentials, or is too old.
    """
    async with contextlib.AsyncExitStack() as stack:
        connection = await Connection.open(lambda: load_configuration(kubeconfig, context))
        stack.push_async_callback(connection.close)
        cluster = KubeCluster(connection, timing)
        templates = KubeTemplates(connection, cluster.templates, budget=create_budget)
        stack.push_async_callback(templates.close)
        tasks = [asyncio.create_task(cache.run(), name=f"watch {cache.resource}") for cache in cluster.caches]
        recorder = EventRecorder(connection, socket.gethostname()) if events else None
        if recorder is not None:
            tasks.append(asyncio.create_task(recorder.run(), name="events"))
        stack.push_async_callback(_cancel, tasks)
        await _first_sync(cluster.caches, connection.address, sync_timeout)
        yield KubeWorld(connection, cluster, templates, cluster.caches, templates.counters, recorder)


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _first_sync(caches: Sequence[Reflector[Any]], address: str, wait: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait):
            await asyncio.gather(*(cache.settled.wait() for cache in caches))
    # A long list that makes progress delays readiness, but not the start: tenants choose its length.
    unseen = [cache for cache in caches if not cache.synced.is_set() and (cache.problem or not cache.read)]
    if unseen:
        reasons = dict.fromkeys(cache.problem or f"no list of {cache.resource} within {wait:g} s" for cache in unseen)
        raise ClusterUnavailableError(f"the cluster at {address} cannot be used: {'; '.join(reasons)}")


class Connection:
    """A `TimedApiServer` over the client's transport: connection pool, TLS, credentials.

    If the API server refuses the credentials, they are read again, once for all concurrent requests: tokens of
    credential plugins and files expire, and the client reads them only once.
    """

    def __init__(
        self,
        load: Callable[[], Awaitable["Configuration"]],
        client: "ApiClient",
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        """Wrap a client.

        Args:
            load: reads the configuration again.
            client: the client.
            clock: monotonic seconds.
            wall: the local time of day.
        """
        self._load = load
        self._client = client
        self._clock = clock
        self._wall = wall
        self._skew = dt.timedelta(0)
        self._renewal = asyncio.Lock()
        self._renewed = float("-inf")

    @classmethod
    async def open(cls, load: Callable[[], Awaitable["Configuration"]]) -> "Connection":
        """Prepare a connection; nothing is sent yet.

        Raises:
            ClusterUnavailableError: the configuration, or a certificate that it names, cannot be used.
        """
        from kubernetes.aio.client.api_client import ApiClient

        configuration = await load()
        try:
            client = ApiClient(configuration)
        except OSError as error:
            raise ClusterUnavailableError(
                f"the certificates for {configuration.host} cannot be used: {error}: check the certificate authority, "
                "client certificate and key"
            ) from error
        client.user_agent = _USER_AGENT
        return cls(load, client)

    @property
    def address(self) -> str:
        """URL of the API server."""
        return str(self._client.configuration.host)

    @property
    def skew(self) -> dt.timedelta:
        """How far the API server's clock is ahead of the local clock, to a second; 0 before the first answer."""
        return self._skew

    def now(self) -> dt.datetime:
        """The time by the API server's clock."""
        return self._wall() + self._skew

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    async def request(
        self,
        method: str,
        path: str,
        *,
        timeout: float,  # noqa: ASYNC109 - aiohttp keeps it, for connecting as well as for reading
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> bytes:
        """Body of a successful answer; see `ApiServer.request`."""
        limits = aiohttp.ClientTimeout(total=timeout)
        sent = Sent(method, path, query or {}, body, content_type, accept)
        with self._reachable():
            async with await self._send(sent, limits) as response:
                content = await content_of(response)
        if not response.ok:
            raise status_of(response, content)
        return content

    @contextlib.asynccontextmanager
    async def stream(self, path: str, *, query: Mapping[str, str], stall: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """A body in pieces; see `ApiServer.stream`."""
        limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT, sock_read=stall)
        with self._reachable():
            response = await self._send(Sent("GET", path, query), limits)
        try:
            if not response.ok:
                with self._reachable():
                    content = await content_of(response)
                raise status_of(response, content)
            async with contextlib.aclosing(self._pieces(response)) as pieces:
                yield pieces
        finally:
            response.close()

    async def _pieces(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        with self._reachable():
            async for piece in response.content.iter_any():
                yield piece

    async def _send(self, sent: Sent, limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        begun = self._clock()
        response = await self._exchange(sent, limits)
        if response.status == UNAUTHORIZED and await self._renew(begun):
            response.release()
            response = await self._exchange(sent, limits)
        return response

    async def _exchange(self, sent: Sent, limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        # Not compressed: some hundred KB of gzip may expand to hundreds of MB of tenants' objects.
        headers = {"Accept": sent.accept, "Content-Type": sent.content_type, "Accept-Encoding": "identity"}
        parts = await self._client.param_serialize(
            sent.method,
            sent.path,
            query_params=list(sent.query.items()),
            header_params=headers,
            body=list(sent.body) if isinstance(sent.body, Sequence) else sent.body,
            auth_settings=["BearerToken"],
        )
        asked = self._wall()
        answer = await self._client.call_api(*parts, _request_timeout=limits)
        response: aiohttp.ClientResponse = answer.response
        self._note_time(response.headers.get("Date", ""), asked)
        return response

    def _note_time(self, date: str, asked: dt.datetime) -> None:
        """Compare clocks: the server wrote the date, truncated to seconds, between request and answer."""
        try:
            said = email.utils.parsedate_to_datetime(date)
        except ValueError:
            return
        if said.tzinfo is None:
            return
        answered = self._wall()
        if answered - asked > _QUICK:  # this process may have been paused before it read the answer
            return
        before, self._skew = self._skew, said + _HALF_A_SECOND - (asked + (answered - asked) / 2)
        if (abs(before) > _SKEW_NOTED) != (abs(self._skew) > _SKEW_NOTED):
            log.warning("clock compared", extra={"api_server_ahead_seconds": round(self._skew.total_seconds())})

    async def _renew(self, sent: float) -> bool:
        """Read the credentials again, unless another request did since `sent`. Returns whether to retry."""
        async with self._renewal:
            if self._renewed >= sent:
                return True
            if self._clock() - self._renewed < _RENEWAL_INTERVAL:
                return False
            self._renewed = self._clock()
            try:
                fresh = await self._load()
                if fresh.cert_file:
                    self._client.rest_client.ssl_context.load_cert_chain(fresh.cert_file, fresh.key_file)
            except (ClusterUnavailableError, OSError) as error:
                log.warning("the API server refused the credentials, and they cannot be read again: %s", error)
                return False
            self._client.configuration.api_key = fresh.api_key
            self._client.configuration.refresh_api_key_hook = fresh.refresh_api_key_hook
            return True

    @contextlib.contextmanager
    def _reachable(self) -> Iterator[None]:
        from kubernetes.aio.config import ConfigException

        try:
            yield
        except ConfigException as error:
            raise UnreachableError(f"the service account token cannot be read: {error}") from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise UnreachableError(
                f"the certificate of {self.address} is not trusted ({error.certificate_error}): check the certificate "
                "authority"
            ) from error
        except TimeoutError as error:
            raise UnreachableError(f"{self.address} did not answer in time") from error
        except aiohttp.ClientConnectorError as error:
            # Errors of the resolver are negative numbers, which os.strerror does not know.
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
            raise UnreachableError(f"cannot connect to {self.address}: {why}") from error
        except aiohttp.ClientPayloadError as error:
            raise UnreachableError(f"the connection to {self.address} broke off in the middle of an answer") from error
        except (aiohttp.ClientError, OSError) as error:
            why = str(error) or type(error).__name__
            raise UnreachableError(f"the connection to {self.address} broke: {why}") from error


async def load_configuration(kubeconfig: Path | None, context: str | None = None) -> "Configuration":
    """Read address, certificate authority and credentials of the API server.

    Raises:
        ClusterUnavailableError: a file is missing, unreadable or incomplete.
    """
    from kubernetes.aio import config
    from kubernetes.aio.client.configuration import Configuration
    from yaml import YAMLError

    configuration = Configuration(host="")
    # Certificate authorities of clusters often lack the key identifiers that Python >= 3.13 insists on; Go, and so
    # kubectl, does not.
    configuration.disable_strict_ssl_verification = True
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            return configuration
        with kubeconfig.open("rb"):  # the client treats a missing file as an empty one
            await config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=str(kubeconfig),
                context=context,
                client_configuration=configuration,
                persist_config=False,
            )
    except OSError as error:
        raise ClusterUnavailableError(f"cannot read {error.filename}: {error.strerror}") from error
    except YAMLError as error:
        raise ClusterUnavailableError(f"kubeconfig {kubeconfig} is not YAML: {error}") from error
    except config.ConfigException as error:
        raise ClusterUnavailableError(_unusable(kubeconfig, str(error))) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = f"something is missing or malformed ({error})"
        raise ClusterUnavailableError(_unusable(kubeconfig, why)) from error
    if not configuration.host:
        raise ClusterUnavailableError(f"kubeconfig {kubeconfig}: the cluster has no server: add its URL")
    return configuration


def _unusable(kubeconfig: Path | None, why: str) -> str:
    if kubeconfig is None:
        return (
            f"this process does not run in a cluster ({why}): give a kubeconfig, or start without a cluster "
            "(--standalone)"
        )
    return f"kubeconfig {kubeconfig} cannot be used: {why}"
