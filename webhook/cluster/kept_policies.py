"""Keeps the last good set of policy files in a ConfigMap, for the start of any replica.

The chart makes the ConfigMap, empty. The webhook may only read and replace it, and needs no right to create any.
"""

import base64
import binascii
from typing import Final

from cluster.resources import CONFIG_MAPS
from policies.files.folders import KeepError, is_kept
from runtime.api_errors import NOT_FOUND, ApiServerError, StatusError
from runtime.api_server import ApiServer, loaded_object

_FIELD: Final = "policies.json.z"
_TIMEOUT: Final = 5.0


class ConfigMapKeeper:
    """A `policies.files.folders.Keeper`."""

    def __init__(self, server: ApiServer, namespace: str, name: str) -> None:
        self._server = server
        self._path = f"{CONFIG_MAPS.path(namespace)}/{name}"
        self._name = f"ConfigMap {namespace}/{name}"

    async def read(self) -> bytes | None:
        """What was kept last; None if nothing was.

        Raises:
            KeepError: it cannot be read.
        """
        return _content(await self._get())

    async def write(self, content: bytes, known: str) -> None:
        """Replace what was kept, unless it has the digest `known` already.

        Raises:
            KeepError: it cannot be written.
        """
        found = await self._get()
        if is_kept(_content(found), known):
            return
        # The version is that of the object that was read: another replica's write in between is a conflict.
        made = {**found, "binaryData": {_FIELD: base64.b64encode(content).decode()}}
        try:
            await self._server.request("PUT", self._path, timeout=_TIMEOUT, body=made)
        except ApiServerError as error:
            raise KeepError(f"{self._name} cannot be written: {error}") from error

    async def _get(self) -> dict[str, object]:
        try:
            return loaded_object(await self._server.request("GET", self._path, timeout=_TIMEOUT))
        except StatusError as error:
            if error.code == NOT_FOUND:
                raise KeepError(f"{self._name} does not exist; apply it as shipped") from error
            raise KeepError(f"{self._name} cannot be read: {error}") from error
        except ApiServerError as error:
            raise KeepError(f"{self._name} cannot be read: {error}") from error


def _content(found: dict[str, object]) -> bytes | None:
    data = found.get("binaryData")
    text = data.get(_FIELD) if isinstance(data, dict) else None
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except binascii.Error:
        return b""
