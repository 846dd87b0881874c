"""Why a directory is not adopted."""

from __future__ import annotations


class Refusal(Exception):
    """The directories cannot be adopted in this state; nothing was changed.

    The text names the file, what is wrong with it, and what to do.
    """


class Unfinished(Exception):
    """It failed after something was changed; running the same command again completes it."""


class MissingArgument(Exception):
    """The command line lacks something that the command needs."""
