"""The baseline: Starlette routes that return constants, with the same server settings and TLS.

`python -m benchmarks.bare PORT CERTIFICATE KEY [PATCH]`: PATCH is a file with the JSON patch of /mutate. The uid of an
answer is that of its review, which the API server requires.
"""

import base64
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

ANSWER = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "response": {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True},
}


async def review(request: Request) -> JSONResponse:
    return JSONResponse(ANSWER)


_UID = re.compile(rb'"uid":"([^"]+)"')
_ANSWER = '{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"%s","allowed":true%s}}'


def constant(patch: bytes) -> Callable[[Request], Awaitable[Response]]:
    """A route that admits everything, with a patch unless it is empty. It reads nothing but the review's uid."""
    added = f',"patchType":"JSONPatch","patch":"{base64.b64encode(patch).decode()}"' if patch else ""

    async def answer(request: Request) -> Response:
        found = _UID.search(await request.body())
        uid = found[1].decode() if found else ""
        return Response(_ANSWER % (uid, added), media_type="application/json")

    return answer


async def ready(request: Request) -> JSONResponse:
    return JSONResponse({})


def main(port: int, certificate: str, key: str, patch: bytes) -> None:
    routes = [
        Route("/bare", review, methods=["POST"]),
        Route("/mutate", constant(patch), methods=["POST"]),
        Route("/{path:path}", constant(b""), methods=["POST"]),
        Route("/readyz", ready),
    ]
    uvicorn.run(
        Starlette(routes=routes),
        host="127.0.0.1",
        port=port,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=300,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]).read_bytes() if len(sys.argv) > 4 else b"")
