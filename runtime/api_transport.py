"""The transport to the API server, for both programs: TLS, credentials, time-outs, bounded answers, one set of errors.

The only module that imports the `kubernetes` client, and only in functions, after `_asynchronous_only`. The client
provides transport, kubeconfig and service account handling. Its models are not used: they refuse newer fields.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import email.utils
import importlib.util
import logging
import os
import sys
import time
import types
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import aiohttp
import msgspec

from runtime import kubeconfigs
from runtime.api_server import (
    COMPACT,
    FORBIDDEN,
    JSON,
    UNAUTHORIZED,
    BrokenConnectionError,
    ClusterUnavailableError,
    StatusError,
    TooLongError,
    UnreachableError,
)
from runtime.retries import REQUEST_TIMEOUT, RETRY

if TYPE_CHECKING:
    from kubernetes.aio.client.api_client import ApiClient
    from kubernetes.aio.client.configuration import Configuration

LONGEST_ANSWER: Final = 16 * 1024 * 1024
"""Bytes. One object is shorter; a list that is longer is requested again with fewer objects per page."""

WEBHOOK_AGENT: Final = "neuron-dra-webhook"
WITHOUT_CLUSTER: Final = "give a kubeconfig, or start without a cluster (--standalone)"

_RENEWAL_INTERVAL: Final = 10.0
_MOST_RETRIES: Final = 10
"""Of one request, as client-go's `maxRetries`."""
_PAUSE_AFTER_BREAK: Final = 1.0
"""Seconds before a GET is sent again after its connection broke."""
_STARTING: Final = 30.0
"""Seconds after a broken connection in which a missing permission may be one that the API server has not read yet."""
_PAUSE_OF_START: Final = 0.5
_SKEW_NOTED: Final = dt.timedelta(minutes=1)
"""A larger difference of the clocks is logged; certificates are backdated by five minutes."""
_QUICK: Final = 2.0
"""Seconds."""
_HALF_A_SECOND: Final = dt.timedelta(seconds=0.5)

_log = logging.getLogger(__name__)

LoadConfiguration = Callable[[], Awaitable["Configuration"]]
"""Reads the configuration of the client."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Sent:
    method: str
    path: str
    query: Mapping[str, str]
    body: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None
    content_type: str = JSON
    accept: str = JSON


class Connection:
    """Requests to one API server: connection pool, TLS, credentials.

    After HTTP 401 the credentials are read again, once for all concurrent requests, and the request is retried: tokens
    of credential plugins and files expire, and the client reads them only at its start.
    """

    def __init__(
        self,
        load: LoadConfiguration,
        client: "ApiClient",
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Wrap a client.

        Args:
            load: reads the client's configuration again.
            client: of the `kubernetes` package.
            clock: monotonic seconds.
            wall: local time of day.
            sleep: waits a number of seconds.
        """
        self._sleep = sleep
        self._load = load
        self._client = client
        self._clock = clock
        self._wall = wall
        self._said: tuple[dt.datetime, float] | None = None
        self._heard = clock()
        self._broken = float("-inf")
        self._apart = False
        self._renewal = asyncio.Lock()
        self._renewed = float("-inf")

    @classmethod
    async def open(
        cls,
        load: LoadConfiguration,
        user_agent: str = WEBHOOK_AGENT,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> "Connection":
        """Prepare a connection; nothing is sent yet. `sleep` waits before a retry.

        Raises:
            ClusterUnavailableError: the configuration, or a certificate that it names, cannot be used.
        """
        _asynchronous_only()
        from kubernetes.aio.client.api_client import ApiClient

        configuration = await load()
        try:
            client = ApiClient(configuration)
        except OSError as error:
            raise ClusterUnavailableError(
                f"the certificates for {configuration.host} cannot be used: {error}: check the certificate authority, "
                "client certificate and key"
            ) from error
        client.user_agent = user_agent
        return cls(load, client, sleep=sleep)

    @property
    def address(self) -> str:
        """URL of the API server."""
        return str(self._client.configuration.host)

    @property
    def skew(self) -> dt.timedelta:
        """How far the API server's clock is ahead of ours, within a second; 0 before the first answer."""
        return dt.timedelta(0) if self._said is None else self.now() - self._wall()

    @property
    def silence(self) -> float:
        """Seconds since the last answer of any kind; before the first, since the connection was made."""
        return self._clock() - self._heard

    def now(self) -> dt.datetime:
        """The time by the API server's clock: that of its last answer, and the seconds since.

        The local time of day counts only before the first answer. It may jump, and a decision with a wrong time would
        replace certificates that are valid.
        """
        if self._said is None:
            return self._wall()
        time_, at = self._said
        return time_ + dt.timedelta(seconds=self._clock() - at)

    async def close(self) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]

    async def request(
        self,
        method: str,
        path: str,
        *,
        timeout: float,  # noqa: ASYNC109 - aiohttp applies it to connecting and reading
        query: Mapping[str, str] | None = None,
        body: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> bytes:
        """Body of a successful answer.

        Retries are those of client-go (`rest/with_retry.go`), in both programs: after 429 or a server error for which
        the server names a pause, and a GET after a connection broke.

        Args:
            timeout: seconds for the whole request, retries included: none begins that would end later.
            body: an object or a patch, as `content_type` says.
            accept: media type of the answer.

        Raises:
            StatusError: the answer is not a success.
            UnreachableError: there is no complete answer within `timeout`.
            TooLongError: the answer is longer than `LONGEST_ANSWER`.
        """
        sent = _Sent(method, path, query or {}, body, content_type, accept)
        deadline = self._clock() + timeout
        for left in range(_MOST_RETRIES, -1, -1):
            try:
                return await self._answer_to(sent, deadline - self._clock())
            except (StatusError, BrokenConnectionError) as error:
                pause = _PAUSE_OF_START if self._may_be_starting(error) else _pause_after(error, method)
                if not left or pause is None or self._clock() + pause >= deadline:
                    raise
            await self._sleep(pause)
        raise AssertionError("unreachable")

    def _may_be_starting(self, error: Exception) -> bool:
        """Whether an API server that has just started refuses what its roles permit: it has not read them all."""
        refused = isinstance(error, StatusError) and error.code == FORBIDDEN and error.missing_right is not None
        return refused and self._clock() - self._broken < _STARTING

    async def _answer_to(self, sent: _Sent, seconds: float) -> bytes:
        with self._reachable():
            async with await self._send(sent, aiohttp.ClientTimeout(total=seconds)) as response:
                content = await _content_of(response)
        if not response.ok:
            raise _status_of(response, content)
        return content

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], stall: float, accept: str = JSON
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """A GET whose body is read in pieces of any length.

        Args:
            stall: time-out in seconds for the next piece.
            accept: media type of the pieces.

        Raises:
            StatusError: on entering: the answer is not a success.
            UnreachableError: on entering or reading.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT, sock_read=stall)
        response = await self._opened(_Sent("GET", path, query, accept=accept), limits)
        try:
            async with contextlib.aclosing(self._pieces(response)) as pieces:
                yield pieces
        finally:
            response.close()

    async def _opened(self, sent: _Sent, limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        for left in range(_MOST_RETRIES, -1, -1):
            with self._reachable():
                response = await self._send(sent, limits)
                if response.ok:
                    return response
                async with response:
                    error = _status_of(response, await _content_of(response))
            if not left or not self._may_be_starting(error):
                raise error
            await self._sleep(_PAUSE_OF_START)
        raise AssertionError("unreachable")

    async def _pieces(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        with self._reachable():
            async for piece in response.content.iter_any():
                yield piece

    async def _send(self, sent: _Sent, limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        begun = self._clock()
        response = await self._exchange(sent, limits)
        if response.status == UNAUTHORIZED and await self._renew(begun):
            response.release()
            response = await self._exchange(sent, limits)
        return response

    async def _exchange(self, sent: _Sent, limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        # Not compressed: a few hundred KB of gzip may contain hundreds of MB of an object that a tenant stored.
        headers = {"Accept": sent.accept, "Content-Type": sent.content_type, "Accept-Encoding": "identity"}
        body: object = list(sent.body) if isinstance(sent.body, Sequence) else sent.body
        parts = await self._client.param_serialize(
            sent.method,
            sent.path,
            query_params=list(sent.query.items()),
            header_params=headers,
            body=msgspec.json.encode(body, order="sorted") if sent.content_type == COMPACT else body,
            auth_settings=["BearerToken"],
        )
        asked = self._clock()
        answer = await self._client.call_api(*parts, _request_timeout=limits)
        response: aiohttp.ClientResponse = answer.response
        self._heard = self._clock()
        self._note_time(response.headers.get("Date", ""), asked)
        return response

    def _note_time(self, date: str, asked: float) -> None:
        """Note the server's clock: it wrote `date`, cut to the second, between our request and its answer."""
        try:
            said = email.utils.parsedate_to_datetime(date)
        except ValueError:
            return
        if said.tzinfo is None:
            return
        answered = self._clock()
        if answered - asked > _QUICK:  # this process may have been stopped or starved before it read the answer
            return
        self._said = said + _HALF_A_SECOND, (asked + answered) / 2
        skew = self.skew
        if (abs(skew) > _SKEW_NOTED) != self._apart:
            self._apart = not self._apart
            _log.warning("clock compared", extra={"api_server_ahead_seconds": round(skew.total_seconds())})

    async def _renew(self, sent: float) -> bool:
        """Read the credentials again, unless that was done since `sent`. Returns whether to retry."""
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
                _log.warning("the API server refused the credentials, and they cannot be read again: %s", error)
                return False
            self._client.configuration.api_key = fresh.api_key
            self._client.configuration.refresh_api_key_hook = fresh.refresh_api_key_hook
            return True

    @contextlib.contextmanager
    def _reachable(self) -> Iterator[None]:
        _asynchronous_only()
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
            self._broken = self._clock()
            raise UnreachableError(f"{self.address} did not answer in time") from error
        except aiohttp.ClientConnectorError as error:
            self._broken = self._clock()
            # The resolver's error numbers are negative; `os.strerror` does not know them.
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
            raise UnreachableError(f"cannot connect to {self.address}: {why}") from error
        except aiohttp.ClientPayloadError as error:
            self._broken = self._clock()
            message = f"the connection to {self.address} broke off in the middle of an answer"
            raise BrokenConnectionError(message) from error
        except (aiohttp.ClientError, OSError) as error:
            self._broken = self._clock()
            lost = isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError)
            kind = BrokenConnectionError if lost else UnreachableError
            words = str(error) or type(error).__name__
            raise kind(f"the connection to {self.address} broke: {words}") from error


def _pause_after(error: StatusError | BrokenConnectionError, method: str) -> float | None:
    """Seconds before a request is sent again; None: it is not."""
    if isinstance(error, BrokenConnectionError):
        return _PAUSE_AFTER_BREAK if method == "GET" else None
    return error.retry_after if error.passing and error.retry_after else None


def _asynchronous_only() -> None:
    """Make the package `kubernetes` without running its `__init__`, which imports the synchronous client.

    That client and its packages (requests, websocket, oauthlib) are not used here, and take 9 MiB. Its modules can
    still be imported by name.
    """
    if "kubernetes" in sys.modules:
        return
    spec = importlib.util.find_spec("kubernetes")
    if spec is not None and spec.submodule_search_locations is not None:
        package = types.ModuleType("kubernetes")
        package.__path__ = spec.submodule_search_locations
        package.__spec__ = spec
        sys.modules["kubernetes"] = package


async def load_configuration(
    kubeconfig: Path | Sequence[Path] | None, context: str | None = None, *, otherwise: str = WITHOUT_CLUSTER
) -> "Configuration":
    """Read the API server's address, its CA and the credentials.

    Args:
        kubeconfig: file to read, or files to merge; None or no files: the service account of this pod.
        context: context of the kubeconfig; None: its current one.
        otherwise: what to do if this process does not run in a cluster, for the error.

    Raises:
        ClusterUnavailableError: a file is missing, unreadable or incomplete.
    """
    _asynchronous_only()
    from kubernetes.aio import config
    from kubernetes.aio.client.configuration import Configuration
    from yaml import YAMLError

    files = (kubeconfig,) if isinstance(kubeconfig, Path) else tuple(kubeconfig or ())
    configuration = Configuration(host="")
    # Python 3.13 and later require key identifiers in certificates (VERIFY_X509_STRICT). The CAs of many clusters have
    # none, and Go, and so kubectl, accepts them.
    configuration.disable_strict_ssl_verification = True
    try:
        if not files:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            # The API server of this cluster needs no proxy. Platforms that inject HTTPS_PROXY into pods exclude it
            # by a CIDR in NO_PROXY, which Python does not know. With a kubeconfig both variables hold, as for kubectl.
            configuration.client_session_kwargs = {"trust_env": False}
            return configuration
        for file in files:
            file.open("rb").close()  # the client takes a missing file for an empty one
        await config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=os.pathsep.join(map(str, files)),
            context=_context(files, context),
            client_configuration=configuration,
            persist_config=False,
        )
    except OSError as error:
        raise ClusterUnavailableError(f"cannot read {error.filename}: {error.strerror}") from error
    except YAMLError as error:
        raise ClusterUnavailableError(f"kubeconfig {_named(files)} is not YAML: {error}") from error
    except config.ConfigException as error:
        raise ClusterUnavailableError(_unusable(files, str(error), otherwise)) from error
    except (AttributeError, TypeError) as error:  # the client expects mappings and lists, and reads whatever it finds
        raise ClusterUnavailableError(
            _unusable(files, f"the file is empty or is not a kubeconfig ({error})", otherwise)
        ) from error
    except (KeyError, ValueError) as error:
        why = f"something is missing or malformed ({error})"
        raise ClusterUnavailableError(_unusable(files, why, otherwise)) from error
    if not configuration.host:
        raise ClusterUnavailableError(f"kubeconfig {_named(files)}: the cluster has no server: add its URL")
    return configuration


def _context(files: Sequence[Path], context: str | None) -> str | None:
    """The context to use; None: the only file's current one. Raises ClusterUnavailableError for an unknown one."""
    if context is None:
        # Of several files, kubectl takes the current context of the first that names one, the client that of the last.
        return kubeconfigs.current_context(files) or None if len(files) > 1 else None
    known = kubeconfigs.context_names(files)
    if known and context not in known:
        raise ClusterUnavailableError(
            f"kubeconfig {_named(files)} has no context {context!r}: use one of {', '.join(known)}"
        )
    return context


def _named(files: Sequence[Path]) -> str:
    return ", ".join(map(str, files))


def _unusable(files: Sequence[Path], why: str, otherwise: str) -> str:
    if not files:
        return f"this process does not run in a cluster ({why}): {otherwise}"
    return f"kubeconfig {_named(files)} cannot be used: {why}"


async def _content_of(response: aiohttp.ClientResponse) -> bytes:
    """The whole body; the connection of one that is too long is closed."""
    pieces, length = [], 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        length += len(piece)
        if length > LONGEST_ANSWER:
            response.close()
            raise TooLongError(f"the answer is longer than {LONGEST_ANSWER} bytes")
    return b"".join(pieces)


def _status_of(response: aiohttp.ClientResponse, content: bytes) -> StatusError:
    try:
        retry_after = min(float(response.headers.get("Retry-After", "0")), RETRY[1])
    except ValueError:  # the header's other form, a date, which the API server does not send
        retry_after = 0.0
    return StatusError.parse(response.status, content, retry_after)
