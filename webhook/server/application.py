"""The ASGI application: dispatches paths to endpoints."""

from collections.abc import Callable, Coroutine, Mapping

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from runtime import tracing
from webhook.edge.endpoints import AdmissionEndpoint, RequestLimits, Telemetry
from webhook.edge.health import Check, HealthEndpoint, Lifecycle
from webhook.edge.shedding import creates_template, never
from webhook.reviews.reviewer import Reviewer

Endpoint = Callable[[Scope, Receive, Send], Coroutine[object, object, None]]


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
