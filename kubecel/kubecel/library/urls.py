"""URLs: an absolute URI or an absolute path, parsed like Go's net/url.

Source: k8s.io/apiserver/pkg/cel/library/urls.go; RFC 3986.
"""

import dataclasses
import re
import urllib.parse
from typing import ClassVar, Final

from kubecel.budget import Budget
from kubecel.checking import function, method
from kubecel.errors import CelBudgetExceededError, CelRuntimeError, quoted
from kubecel.types import BOOL, STRING, URL, Type, list_of, map_of
from kubecel.values import OpaqueValue, utf8

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_HOST: Final = re.compile(r"""(?:[A-Za-z0-9\-_.~!$&'()*+,;=:<>"\[\]]|[^\x00-\x7f]|%[89A-Fa-f][0-9A-Fa-f])*""")
_USER: Final = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*", re.ASCII)
_PORT: Final = re.compile(r"(?::[0-9]*)?", re.ASCII)
_PATH_SAFE: Final = "/$&+,:;=@-_.~"
_ALREADY_ESCAPED: Final = re.compile(r"[A-Za-z0-9\-_.~!$&'()*+,;=:@/\[\]%]*", re.ASCII)

_MAX_LENGTH: Final = 64 * 1024
"""Parsing takes 50 ns for each character, in a few calls."""
_WORK_OF_A_PAIR: Final = 30


@dataclasses.dataclass(frozen=True, slots=True)
class Url(OpaqueValue):
    """The parts of a URL: the host has the port, the path has its escapes, the query has no `?`."""

    text: str
    scheme: str
    host: str
    path: str
    query: str
    cel_type: ClassVar[Type] = URL

    @property
    def hostname(self) -> str:
        """The host without port and brackets."""
        name = self.host[: len(self.host) - len(self.port) - 1] if self.port or self.host.endswith(":") else self.host
        return name[1:-1] if name.startswith("[") and name.endswith("]") else name

    @property
    def port(self) -> str:
        """The digits of the port; may be empty."""
        tail = self.host.rpartition("]")[2]
        return tail.rpartition(":")[2] if ":" in tail else ""


def _not_a_url(text: str, why: str) -> CelRuntimeError:
    return CelRuntimeError(f"{quoted(text)} is not a URL: {why}")


def parse_url(budget: Budget, text: str) -> Url:
    """Parse a URL.

    Raises:
        CelRuntimeError: the text is not a URL.
    """
    budget.scan(len(text))
    return _parsed(budget, text)


def _parsed(budget: Budget, text: str) -> Url:
    if len(text) > _MAX_LENGTH:
        raise CelBudgetExceededError(f"a URL has {len(text)} characters, {_MAX_LENGTH} are allowed")
    budget.work(1 + len(text) // 4)
    return split(text)


def split(text: str) -> Url:
    """Parse a URL without a budget; the caller charges it.

    Raises:
        CelRuntimeError: the text is not a URL.
    """
    if not text:
        raise _not_a_url(text, "it is empty")
    if _CONTROL.search(text):
        raise _not_a_url(text, "it contains control characters")
    if text == "*":
        return Url(text, "", "", text, "")
    _split(text, text)
    return _split(text, text.partition("#")[0])


def _split(text: str, rest: str) -> Url:
    scheme = ""
    match = _SCHEME.match(rest)
    if match is not None:
        scheme, rest = match[1].lower(), rest[match.end() :]
    elif rest.startswith(":"):
        raise _not_a_url(text, "the scheme is missing")
    rest, _, query = rest.partition("?")
    if not rest.startswith("/"):
        if not scheme:
            raise _not_a_url(text, "it is neither absolute nor an absolute path")
        return Url(text, scheme, "", "", query)
    host = ""
    if rest.startswith("//") and (scheme or not rest.startswith("///")):
        authority, slash, path = rest[2:].partition("/")
        host, rest = _host(text, authority), slash + path
    if _BAD_ESCAPE.search(rest):
        raise _not_a_url(text, "an escape must be % and two hexadecimal digits")
    return Url(text, scheme, host, rest, query)


def _host(text: str, authority: str) -> str:
    user, at, host = authority.rpartition("@")
    if at and (not _USER.fullmatch(user) or _BAD_ESCAPE.search(user)):
        raise _not_a_url(text, "the user information has characters that need escaping")
    if host.startswith("["):
        _, bracket, port = host.rpartition("]")
        if not bracket or not _PORT.fullmatch(port):
            raise _not_a_url(text, "the brackets or the port of the host are not valid")
        return host
    _, colon, port = host.partition(":")
    if not _HOST.fullmatch(host) or (colon and not _PORT.fullmatch(colon + port)):
        raise _not_a_url(text, "the host or its port is not valid")
    return urllib.parse.unquote(host)


def _is_url(budget: Budget, text: str) -> bool:
    # The API server charges the call only (k8s.io/apiserver/pkg/cel/library/cost.go).
    try:
        _parsed(budget, text)
    except CelRuntimeError:
        return False
    return True


def _escaped_path(budget: Budget, url: Url) -> str:
    budget.work(len(url.path))
    budget.text(3 * len(url.path))
    if _ALREADY_ESCAPED.fullmatch(url.path):
        return url.path
    return urllib.parse.quote(utf8(urllib.parse.unquote(url.path)), safe=_PATH_SAFE)


def _query(budget: Budget, url: Url) -> dict[str, list[str]]:
    budget.text(len(url.query))
    pairs = url.query.split("&")
    budget.items(len(pairs))
    found: dict[str, list[str]] = {}
    for pair in pairs:
        budget.work(_WORK_OF_A_PAIR + len(pair) // 2)
        if not pair or ";" in pair or _BAD_ESCAPE.search(pair):
            continue
        key, _, value = pair.partition("=")
        found.setdefault(urllib.parse.unquote_plus(key), []).append(urllib.parse.unquote_plus(value))
    return found


OVERLOADS: Final = (
    function("url", STRING, result=URL, call=parse_url, budgeted=True),
    function("isURL", STRING, result=BOOL, call=_is_url, budgeted=True),
    method("getScheme", URL, result=STRING, call=lambda url: url.scheme),
    method("getHost", URL, result=STRING, call=lambda url: url.host),
    method("getHostname", URL, result=STRING, call=lambda url: url.hostname),
    method("getPort", URL, result=STRING, call=lambda url: url.port),
    method("getEscapedPath", URL, result=STRING, call=_escaped_path, budgeted=True),
    method("getQuery", URL, result=map_of(STRING, list_of(STRING)), call=_query, budgeted=True),
)
