"""The versions of `resource.k8s.io` that an API server serves, and its own."""

from runtime.api_errors import FORBIDDEN, NOT_FOUND, UNAUTHORIZED, ApiAnswerError, StatusError
from runtime.api_server import RESOURCE_GROUP, ApiServer, loaded_object

GROUP_PATH = f"/apis/{RESOURCE_GROUP}"


async def served_versions(server: ApiServer, within: float) -> tuple[str, ...]:
    """The versions, the preferred one first; empty if the group is not served.

    Args:
        within: time-out in seconds.

    Raises:
        ApiServerError: they cannot be read.
    """
    try:
        group = loaded_object(await server.request("GET", GROUP_PATH, timeout=within))
    except StatusError as error:
        if error.code == NOT_FOUND:
            return ()
        raise
    try:
        return tuple(str(each["version"]) for each in group.get("versions") or ())
    except (KeyError, TypeError) as error:
        raise ApiAnswerError(f"{GROUP_PATH} has no list of versions") from error


async def kubernetes_version(server: ApiServer, within: float) -> str:
    """The version of the API server, such as `v1.36.2`; empty if it does not say.

    Raises:
        ApiServerError: it cannot be read.
    """
    try:
        return str(loaded_object(await server.request("GET", "/version", timeout=within)).get("gitVersion") or "")
    except StatusError as error:
        if error.code in (UNAUTHORIZED, FORBIDDEN, NOT_FOUND):
            return ""
        raise
