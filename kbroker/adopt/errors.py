"""Why a directory is not adopted."""

from __future__ import annotations


class Refusal(Exception):
    """The directories cannot be adopted as they are; nothing was changed.

    The text names the file, what is wrong with it, and what to do.
    """


class Unfinished(Exception):
    """Something was changed before this happened; the same command, run again, does the rest."""


class Usage(Exception):
    """The command line lacks something that the command needs."""
