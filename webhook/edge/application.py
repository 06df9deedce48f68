"""The ASGI application: dispatches paths to endpoints; `/livez` and `/readyz`.

Readiness is a table of named checks, which read memory and do not block. Liveness has no checks: an answer shows that
the event loop runs. The text has the format of the API server's own endpoints (`[+]name ok`), also with `?verbose`.
"""

from collections.abc import Callable, Coroutine, Mapping
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from runtime import tracing
from webhook.edge.endpoints import AdmissionEndpoint, RequestLimits, Telemetry
from webhook.edge.shedding import Lifecycle, creates_template, never
from webhook.reviews.reviewer import Reviewer

Check = Callable[[], tuple[bool, str]]
"""Returns whether the check passes, and a detail for the answer; the detail may be empty."""

Endpoint = Callable[[Scope, Receive, Send], Coroutine[object, object, None]]


class HealthEndpoint:
    """Answers 200 if every check passes, else 503 with the list of checks."""

    def __init__(self, name: str, checks: Mapping[str, Check], lifecycle: Lifecycle) -> None:
        """`name` is "livez" or "readyz"; checks are listed in their order."""
        self._name = name
        self._checks = checks
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request (ASGI)."""
        headers = {"Connection": "close"} if self._lifecycle.draining else {}
        if scope["method"] not in ("GET", "HEAD"):
            message = f"/{self._name} is read with GET."
            refusal = JSONResponse({"message": message}, 405, {"Allow": "GET, HEAD", **headers})
            await refusal(scope, receive, send)
            return
        verbose = "verbose" in parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        status, text = self.report(verbose=verbose)
        await PlainTextResponse(text, status, {"Cache-Control": "no-store", **headers})(scope, receive, send)

    def report(self, *, verbose: bool) -> tuple[int, str]:
        """HTTP status and text of the answer."""
        lines = []
        well = True
        for name, check in self._checks.items():
            passed, detail = check()
            well = well and passed
            verdict = f"[+]{name} ok" if passed else f"[-]{name} failed"
            lines.append(f"{verdict}: {detail}" if detail else verdict)
        if well and not verbose:
            return 200, "ok"
        lines.append(f"{self._name} check {'passed' if well else 'failed'}")
        return 200 if well else 503, "\n".join(lines) + "\n"


class Application(Starlette):
    """Starlette without its middleware, with a dictionary of fixed paths in front of its router.

    Every endpoint is an ASGI application that handles its own errors and methods, so error middleware and route
    matching are not needed. Together they would cost more than the decision about a pod.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        super().__init__(routes=[Route(path, endpoint) for path, endpoint in endpoints.items()])
        self.router.redirect_slashes = False
        self.router.default = _not_found
        self._endpoints = dict(endpoints)
        admission = {path: each for path, each in endpoints.items() if isinstance(each, AdmissionEndpoint)}
        # Spans are made by the application, so with traces every review goes there.
        self._at_once = {} if tracing.enabled() else {path: each.at_once for path, each in admission.items()}

    def at_once(self, scope: Scope, body: bytes) -> bytes | None:
        """The answer to a complete request, as JSON; None: call the application."""
        endpoint = self._at_once.get(scope["path"])
        return None if endpoint is None else endpoint(scope, body)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[object, object, None]:
        """Call the endpoint of the path, or Starlette's router if there is none."""
        if scope["type"] == "http":
            endpoint = self._endpoints.get(scope["path"])
            if endpoint is not None:
                return endpoint(scope, receive, send)
        return super().__call__(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        """Return the router without middleware."""
        return self.router


def build(
    reviewers: Mapping[str, Reviewer],
    checks: Mapping[str, Check],
    lifecycle: Lifecycle,
    limits: RequestLimits,
    telemetry: Telemetry,
) -> Application:
    """The application: one admission endpoint per reviewer, `/livez`, and `/readyz` with these checks."""

    def endpoint(path: str, reviewer: Reviewer) -> Endpoint:
        exempt = creates_template if path == "/validate" else never
        return AdmissionEndpoint(path, reviewer, limits, telemetry, lifecycle, exempt)

    admission = {path: endpoint(path, reviewer) for path, reviewer in reviewers.items()}
    health = {
        "/livez": HealthEndpoint("livez", {}, lifecycle),
        "/readyz": HealthEndpoint("readyz", checks, lifecycle),
    }
    return Application({**admission, **health})


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    paths = ", ".join(route.path for route in scope["app"].routes)
    message = f"No endpoint at {scope['path'][:100]!r}. This server has {paths}."
    await JSONResponse({"message": message}, 404)(scope, receive, send)
