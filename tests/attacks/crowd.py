"""Many clients of one attacker, in a process of their own: they must not slow down the client that is measured.

Each line of standard input begins an attack: its name, the number of clients, and of namespaces, or 0 for a fresh one
in each review. `begun` is written when one review was answered; the next line ends the attack, and the number of
answers by HTTP status is written.
"""

import asyncio
import contextlib
import json
import ssl
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from tests.attacks import arsenal
from tests.attacks.victims import claim_review
from tests.support.serving import review

ATTRIBUTES = "device.attributes['neuron.aws.com']"
Bodies = Callable[[str], dict[str, Any]]
"""Members of a review that no review before was equal to, made of a text that is new each time."""


def _claims(mark: str, requests: int, selectors: int, text: str) -> dict[str, Any]:
    each = [
        arsenal.exactly(
            f"r{at}",
            selectors=[
                {"cel": {"expression": text.format(a=ATTRIBUTES, at=f"{mark}{at * selectors + one}")}}
                for one in range(selectors)
            ],
        )
        for at in range(requests)
    ]
    return claim_review(arsenal.claim(*each))


def _plain(mark: str, requests: int, selectors: int) -> dict[str, Any]:
    return _claims(mark, requests, selectors, "{a}.cores == {at}")


def _deep(mark: str) -> dict[str, Any]:
    numbers = "[1,2,3,4,5,6,7,8]"
    text = f"{numbers}.all(x,{numbers}.all(y,{numbers}.all(z,{mark}+x+y+z>0)))"
    return claim_review(
        arsenal.claim(*(arsenal.exactly(f"r{at}", selectors=_cel(f"{text} || {at}==1")) for at in range(32)))
    )


def _cel(text: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": text}}]


def _hidden(mark: str) -> dict[str, Any]:
    """One short expression that takes a hundred times as long as others of its length."""
    numbers = "[1,2,3,4,5,6,7,8,9]"
    text = f"{numbers}.all(x,{numbers}.all(y,{numbers}.all(z,{numbers}.all(u,{mark}+x>u+y+z))))"
    return claim_review(arsenal.selecting(text))


def _templates(mark: str) -> dict[str, Any]:
    requests = [arsenal.exactly(f"r{at}", selectors=_cel(f"{ATTRIBUTES}.cores == {mark}{at}")) for at in range(8)]
    return claim_review(arsenal.claim(*requests), "ResourceClaimTemplate")


def _big_pod(mark: str) -> dict[str, Any]:
    data = arsenal.many_init_containers(400)
    data["object"]["metadata"]["annotations"] = {"mark": mark, "filler": "x" * 100_000}
    return data


def _costly_policy(mark: str) -> dict[str, Any]:
    tolerations = [{"key": f"k{mark}-{at}", "operator": "Exists"} for at in range(140)]
    return arsenal.creating(arsenal.pod([arsenal.container("a")], {"labels": {"costly": ""}}, tolerations=tolerations))


def _mixture(mark: str) -> dict[str, Any]:
    kinds = (lambda m: _plain(m, 1, 4), lambda m: _plain(m, 2, 25), lambda m: _plain(m, 32, 32), _deep, _big_pod)
    return kinds[int(mark) % len(kinds)](mark)


def _logged(mark: str) -> dict[str, Any]:
    """A small pod with long names: little work, and as much text for the decision log as one review can cause."""
    data = arsenal.creating(arsenal.pod([arsenal.container("a")]))
    text = f"{mark}-" + "n" * 4000
    data["object"]["metadata"]["name"] = text
    return data | {"uid": text, "name": text}


ATTACKS: dict[str, tuple[str, Bodies]] = {
    "selectors": ("/validate", lambda mark: _plain(mark, 32, 32)),
    "below-small": ("/validate", lambda mark: _plain(mark, 1, 5)),
    "below-medium": ("/validate", lambda mark: _plain(mark, 2, 25)),
    "deep": ("/validate", _deep),
    "hidden": ("/validate", _hidden),
    "templates": ("/validate", _templates),
    "big-pods": ("/mutate", _big_pod),
    "costly-policy": ("/validate", _costly_policy),
    "mixture": ("/validate", _mixture),
    "decision-log": ("/mutate", _logged),
}
ENDLESS_URLS: Final = "endless-urls"
"""An attack of its own: requests whose URL does not end."""
_PIECE: Final = b"a" * 1000


def marks(client: int) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"{client + 1:03}{number:05}"


async def _send(
    url: str, tls: ssl.SSLContext, attack: str, client: int, namespaces: int, replies: Counter[int]
) -> None:
    """Send one review after the other, on one connection while the server keeps it."""
    path, make = ATTACKS[attack]
    where, numbers = urlsplit(url), marks(client)
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            reader, writer = await asyncio.open_connection(
                where.hostname, where.port, ssl=tls, server_hostname="localhost"
            )
            try:
                while True:
                    mark = next(numbers)
                    namespace = f"tenant-{client % namespaces if namespaces else mark}"
                    body = json.dumps(review(**make(mark) | {"namespace": namespace})).encode()
                    head = f"POST {path}?timeout=10s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                    answer = await reader.readuntil(b"\r\n\r\n")
                    length = int(answer.lower().partition(b"content-length:")[2].split()[0])
                    await reader.readexactly(length)
                    replies[int(answer[9:12])] += 1
            finally:
                writer.transport.abort()


async def _send_url(url: str, tls: ssl.SSLContext, replies: Counter[int]) -> None:
    """Send a URL until the server answers or closes; then again."""
    where = urlsplit(url)
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            reader, writer = await asyncio.open_connection(
                where.hostname, where.port, ssl=tls, server_hostname="localhost"
            )
            answer = asyncio.ensure_future(reader.readuntil(b"\r\n\r\n"))
            try:
                writer.write(b"POST /mutate?")
                while not answer.done():
                    writer.write(_PIECE)
                    await writer.drain()
                    await asyncio.sleep(0)
                replies[int(answer.result()[9:12])] += 1
            finally:
                answer.cancel()
                writer.transport.abort()


async def attacked(url: str, tls: ssl.SSLContext, attack: str, clients: int, namespaces: int) -> None:
    replies: Counter[int] = Counter()
    sent = (
        _send_url(url, tls, replies) if attack == ENDLESS_URLS else _send(url, tls, attack, each, namespaces, replies)
        for each in range(clients)
    )
    tasks = [asyncio.ensure_future(each) for each in sent]
    # The attack is under way when one of its reviews was answered, on any machine.
    while not replies:  # noqa: ASYNC110 - tasks of several kinds count here
        await asyncio.sleep(0.01)
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    sys.stdout.write(f"{json.dumps(replies)}\n")
    sys.stdout.flush()


def main(url: str, ca: str) -> None:
    tls = ssl.create_default_context(cafile=ca)
    tls.check_hostname = False
    while line := sys.stdin.readline():
        attack, clients, namespaces = line.split()
        asyncio.run(attacked(url, tls, attack, int(clients), int(namespaces)))


if __name__ == "__main__":
    main(*sys.argv[1:])
