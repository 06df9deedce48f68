"""The error that ends a program at its start."""


class StartupError(Exception):
    """The program cannot start; the message has the value, the place and the fix."""
