"""The session of a broker's last run, kept in its data directory: a run that was killed has not
ended it, and the next one does so itself instead of waiting for it to expire.

Whoever reads the file can end the session, so it is the broker's user's alone. It names the broker
and the inode that it was written to: in a directory that was copied or restored, the session may be
that of a broker that lives. One that is in its directory holds that directory's lock.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from kbroker.metastore.zookeeper_client import new_client
from kbroker.metastore.zookeeper_settings import ZooKeeperSettings

logger = logging.getLogger(__name__)

FILE_NAME = "kbroker-zookeeper-session"
# BOUND: how long the end of a session may take; a file has at most so many bytes.
END_S = 5.0
BYTES_MAX = 10_000

SessionKey = tuple[int, bytes]


class KeptSession:
    """The file in one data directory. owner: cluster id, broker id and address of ZooKeeper."""

    def __init__(self, directory: str, owner: tuple[str, int, str]) -> None:
        self._path = os.path.join(directory, FILE_NAME)
        self._owner = list(owner)

    def read(self) -> SessionKey | None:
        """The session of the last run; None if it was ended, or the file is not of this broker and
        directory, as a line says then.
        """
        try:
            with open(self._path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                document = json.loads(file.read(BYTES_MAX))
            if document["owner"] != self._owner or document["inode"] != inode:
                logger.warning("ignoring %s: it is of another broker, or a copy", self._path)
                return None
            number, password = document["id"], bytes.fromhex(document["password"])
            if type(number) is not int or not number:
                raise ValueError(f"{number!r} is no session")
            return number, password
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("ignoring %s, which cannot be read: %r", self._path, error)
            return None

    def write(self, session: SessionKey) -> None:
        """Replace it. Raises OSError."""
        number, password = session
        new = f"{self._path}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            document = {
                "owner": self._owner,
                "inode": os.fstat(fd).st_ino,
                "id": number,
                "password": password.hex(),
            }
            json.dump(document, file)
        os.replace(new, self._path)

    def remove(self) -> None:
        """The session has ended."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)


class SessionEnding:
    """The end of a session of the last run, which a thread waits for. Not before a fork."""

    def __init__(self, settings: ZooKeeperSettings, session: SessionKey) -> None:
        self.is_done = self.has_ended = False
        self._settings = settings
        self._session = session
        threading.Thread(target=self._run, daemon=True, name="zookeeper-end").start()

    def _run(self) -> None:
        try:
            self.has_ended = self._end()
        except (KazooException, KazooTimeoutError, OSError) as error:
            text = "cannot end the ZooKeeper session of the last run, which expires: %r"
            logger.warning(text, error)
        finally:
            self.is_done = True

    def _end(self) -> bool:
        client = new_client(self._settings, session=self._session, below_chroot=False)
        try:
            client.start(END_S)
            # If it has expired meanwhile, or the password is another one, this is a new session.
            return client.client_id is not None and client.client_id[0] == self._session[0]
        finally:
            client.stop()
            client.close()
