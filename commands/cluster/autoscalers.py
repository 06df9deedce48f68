"""Lists the VerticalPodAutoscalers of a cluster. Many clusters do not serve them."""

from typing import Final

from commands.cluster.listing import Lister, Object, Seen, unseen
from runtime.api_errors import NOT_FOUND, ApiServerError, StatusError
from runtime.api_server import ApiServer, Resource, loaded_object
from runtime.raw_objects import Page, read_page

RESOURCE: Final = Resource("autoscaling.k8s.io", "v1", "verticalpodautoscalers")


async def vertical_autoscalers(server: ApiServer, namespace: str = "") -> Seen[Object]:
    """All of a namespace, or of the cluster; none if the cluster does not serve them."""
    found: list[Object] = []

    def take(page: Page) -> None:
        found.extend(loaded_object(bytes(raw)) for raw in page.items or ())

    try:
        await Lister(server).read(RESOURCE.path(namespace), {}, read_page, take, found.clear)
    except ApiServerError as error:
        if isinstance(error, StatusError) and error.code == NOT_FOUND:
            return ()
        return unseen(error, RESOURCE, "list", namespace)
    return tuple(found)
