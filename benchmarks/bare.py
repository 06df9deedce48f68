"""The baseline: a Starlette route that returns a constant, with the same server settings and TLS."""

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

ANSWER = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "response": {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True},
}


async def review(request: Request) -> JSONResponse:
    return JSONResponse(ANSWER)


async def ready(request: Request) -> JSONResponse:
    return JSONResponse({})


def main(port: int, certificate: str, key: str) -> None:
    routes = [Route("/bare", review, methods=["POST"]), Route("/readyz", ready)]
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
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
