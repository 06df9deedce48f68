"""The schemas of kinds as an API server publishes them (OpenAPI v3), also of CustomResourceDefinitions.

Any account may read them (ClusterRole `system:discovery`).
"""

import asyncio
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

from runtime.api_errors import NOT_FOUND, ApiServerError, StatusError
from runtime.api_server import ApiServer, loaded

_SECONDS: Final = 3.0
"""Time-out of one document."""


def from_thread(server: ApiServer) -> Callable[[str], object]:
    """Reads the OpenAPI document of an apiVersion, for a thread beside this event loop.

    The function returns None for an apiVersion that is not served, and a text that says why it cannot be read.
    """
    loop = asyncio.get_running_loop()

    def document(api_version: str) -> object:
        root = "apis" if "/" in api_version else "api"
        path = f"/openapi/v3/{root}/{'/'.join(quote(part, safe='') for part in api_version.split('/'))}"
        try:
            # Decoded here, and not in the event loop: it may have megabytes.
            return loaded(asyncio.run_coroutine_threadsafe(_read(server, path), loop).result())
        except TimeoutError:
            return f"no answer within {_SECONDS:g} s"
        except StatusError as error:
            return None if error.code == NOT_FOUND else str(error)
        except ApiServerError as error:
            return str(error)

    return document


async def _read(server: ApiServer, path: str) -> bytes:
    async with asyncio.timeout(_SECONDS):
        return await server.request("GET", path, timeout=_SECONDS)
