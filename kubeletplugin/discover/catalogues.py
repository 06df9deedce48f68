"""The instance catalogue in force: the built-in one, or that of a folder of policy files, which is followed.

Only this module reads policy files, and only if a folder is given: the models of policies need time and memory.
"""

import logging
from pathlib import Path
from typing import Final

from neuron.hardware.instances import Catalogue

_PROBLEMS_LOGGED: Final = 20

_log = logging.getLogger(__name__)


class Catalogues:
    """Reads the InstanceTypeCatalogs of a folder, again after each change."""

    def __init__(self, folder: Path | None) -> None:
        """Without a folder, the catalogue is always the built-in one."""
        self._folder = folder
        self._current = Catalogue()
        self._look: object = None
        self.problem = ""

    def current(self) -> Catalogue:
        """The catalogue of the files as they are now.

        If they have a problem, it is logged once, and the catalogue stays as it was.
        """
        if self._folder is None:
            return self._current
        from policies.files import catalogues, folders

        look = folders.fingerprint(self._folder)
        if look == self._look:
            return self._current
        self._look = look
        try:
            self._current = catalogues.read(folders.read_folder(self._folder))
        except folders.PolicyError as error:
            shown = [str(problem) for problem in error.problems[:_PROBLEMS_LOGGED]]
            extra = {"folder": str(self._folder), "problems": shown, "number": len(error.problems)}
            _log.error("instance types not read: the catalogue in force stays", extra=extra)
            self.problem = "; ".join(shown)
        else:
            self.problem = ""
            _log.info("instance types read", extra={"folder": str(self._folder), "types": len(self._current.names())})
        return self._current
