"""Lists of the Kubernetes API, page by page.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#retrieving-large-results-sets-in-chunks
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Final, Protocol, TypeVar

_SHRINK: Final = 4


class ListMeta(Protocol):
    """The field of `metav1.ListMeta` that paging needs."""

    @property
    def continue_(self) -> str:
        """Token of the next page; empty on the last page."""


class ListPage(Protocol):
    """One decoded page."""

    @property
    def metadata(self) -> ListMeta: ...


P = TypeVar("P", bound=ListPage)


async def pages(
    fetch: Callable[[Mapping[str, str]], Awaitable[P]], query: Mapping[str, str], limit: int, too_long: type[Exception]
) -> AsyncGenerator[P, None]:
    """The pages of one list.

    Args:
        fetch: requests one page with these query parameters, and decodes it.
        query: further query parameters.
        limit: objects per page; 0: all objects in one page.
        too_long: raised by `fetch` if the answer is too long. The page is then requested with fewer objects; with a
            limit of 0 or 1 the error is passed on.
    """
    token = ""
    while True:
        asked = {**query, **({"limit": str(limit)} if limit else {}), **({"continue": token} if token else {})}
        try:
            page = await fetch(asked)
        except too_long:
            if limit <= 1:
                raise
            limit = max(1, limit // _SHRINK)
            continue
        token = page.metadata.continue_
        yield page
        if not token:
            return
