"""Why a program does not start."""


class StartupError(Exception):
    """The server cannot start; the message says what is wrong, where, and what to do."""
