"""Devices that must not be given to another claim, although the cluster does not know that they are in use.

A device is held if it is prepared for a claim whose object is gone or allocated elsewhere by now, or if processes have
it for a claim that has ended. All devices are held while the driver restores which claims are prepared.
"""

import dataclasses
from collections.abc import Mapping
from typing import Final

from kubeletplugin.changes import Changing
from kubeletplugin.prepare.checkpoint import PreparedClaim
from kubeletplugin.prepare.usage import ReleaseBlocker

RELEASED_NEXT: Final = "nothing is known to use it, and it is released at the next search"


@dataclasses.dataclass(frozen=True, slots=True)
class Hold:
    """A claim that is not released.

    Attributes:
        use: why it is kept; None if it will be released at the next search.
    """

    claim: PreparedClaim
    use: ReleaseBlocker | None

    @property
    def why(self) -> str:
        """Half a sentence, for people."""
        return self.use.text if self.use is not None else RELEASED_NEXT


class Holds(Changing):
    """The held claims of the node, and waiting for changes of them.

    Attributes:
        claims: by UID.
        restoring: whether prepared claims may be missing in the driver's state, or in `claims`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.restoring = False
        self.claims: Mapping[str, Hold] = {}

    @property
    def indices(self) -> frozenset[int]:
        """All held devices."""
        return frozenset(index for hold in self.claims.values() for index in hold.claim.held)

    def take(self, claims: Mapping[str, Hold]) -> None:
        """Take the held claims as they are now."""
        if dict(claims) != dict(self.claims):
            self.claims = dict(claims)
            self._count_change()

    def restore(self, *, restoring: bool) -> None:
        """Take whether prepared claims may be missing."""
        if restoring is not self.restoring:
            self.restoring = restoring
            self._count_change()

    def take_ended(self, claims: Mapping[str, Hold]) -> None:
        """Take the held claims that have ended, as they are now."""
        self.take({key: hold for key, hold in self.claims.items() if not hold.claim.has_ended} | dict(claims))

    def forget(self, uid: str) -> None:
        """A claim was unprepared."""
        self.take({key: hold for key, hold in self.claims.items() if key != uid})
