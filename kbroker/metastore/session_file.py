"""Id and password of a ZooKeeper session, for the next incarnation of the controller process.

The file lets whoever reads it take over the session, so it is the broker's user's alone.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Protocol

FILE_NAME = "zookeeper-session"


class Kept(Protocol):
    """What outlives this run: ``kept_session.KeptSession``."""

    def write(self, session: tuple[int, bytes]) -> None: ...
    def remove(self) -> None: ...


class SessionFile:
    """A file in the runtime directory, whose content ends with this run of the broker. kept: has
    the same for the next run.
    """

    def __init__(self, directory: str, connect: str, kept: Kept | None = None) -> None:
        self._path = os.path.join(directory, FILE_NAME)
        self._connect = connect
        self._kept = kept

    def read(self) -> tuple[int, bytes] | None:
        """The session of the last incarnation; None if there was none, there."""
        try:
            with open(self._path, encoding="utf-8") as file:
                document = json.load(file)
            if document["connect"] != self._connect:
                return None
            return int(document["id"]), bytes.fromhex(document["password"])
        except (OSError, ValueError, KeyError, TypeError):
            return None  # there will be a new session

    def write(self, session: tuple[int, bytes]) -> None:
        """Replace it. Raises OSError."""
        number, password = session
        document = {"connect": self._connect, "id": number, "password": password.hex()}
        new = f"{self._path}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            json.dump(document, file)
        os.replace(new, self._path)
        if self._kept is not None:
            self._kept.write(session)

    def remove(self) -> None:
        """The session has ended."""
        with contextlib.suppress(OSError):  # if it stays, resuming it fails and a new one begins
            os.unlink(self._path)
        if self._kept is not None:
            self._kept.remove()
