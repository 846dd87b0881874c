"""The runtime directory of one run, with the ZeroMQ endpoints in it.

Its path is ``<runtime.dir>/kbroker-<nonce>``, its mode 0700. It holds ``lock``, ``owner`` and
``broker.json``, which says where the broker can be reached. The supervisor holds ``lock`` with
flock for as long as it lives, and no other process does: the kernel releases it however the
supervisor dies. The next start with the same ``runtime.dir`` removes every such directory whose
lock is free.

The directory itself is locked as well, shared: systemd-tmpfiles, which removes what is old in
``/tmp``, passes over a directory that is (tmpfiles.d(5), "Age").
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import stat
from contextlib import suppress
from typing import Any

from kbroker.errors import ConfigError

logger = logging.getLogger(__name__)

PREFIX = "kbroker-"
_NEW_PREFIX = ".new-"  # until the lock is held; never swept while young
LOCK_NAME = "lock"
STATUS_NAME = "broker.json"
_ENDPOINT_NAME_MAX = 30  # "controller-0." and a long incarnation
# BOUND: sun_path is 108 bytes with its terminator, and ZeroMQ needs some of them.
SOCKET_PATH_BYTES_MAX = 100


class RuntimeDir:
    """A runtime directory this process owns."""

    def __init__(self, path: str, lock_fd: int, directory_fd: int, removes_base: bool) -> None:
        self.path = path
        # Names this run.
        self.nonce = os.path.basename(path).removeprefix(PREFIX)
        self._removes_base = removes_base
        self._lock_fd = lock_fd
        self._directory_fd = directory_fd

    @classmethod
    def create(cls, base: str, *, removes_base: bool = False) -> RuntimeDir:
        """Sweep the remains of dead runs in ``base`` and create a directory for this one.

        removes_base: whether ``base`` is used by this run only and removed with it.
        Raises ConfigError for runtime.dir when the path is too long for a Unix socket or cannot be
        written.
        """
        base = os.path.abspath(base)
        if not removes_base:
            base = os.path.realpath(base)  # a link that the operator named
        nonce = os.urandom(4).hex()
        path = os.path.join(base, PREFIX + nonce)
        if len(os.fsencode(path)) + 1 + _ENDPOINT_NAME_MAX > SOCKET_PATH_BYTES_MAX:
            longest = SOCKET_PATH_BYTES_MAX - _ENDPOINT_NAME_MAX - len(PREFIX + nonce) - 2
            raise ConfigError("runtime.dir", base, f"a path of at most {longest} bytes")
        new_path = os.path.join(base, _NEW_PREFIX + nonce)
        locks: list[int] = []
        try:
            os.makedirs(base, mode=0o700, exist_ok=True)
            check_base(base)
            sweep(base)
            os.mkdir(new_path, mode=0o700)
            lock_path = os.path.join(new_path, LOCK_NAME)
            locks.append(os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            fcntl.flock(locks[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(locks[0], f"{os.getpid()}\n".encode())  # for people; only the lock counts
            locks.append(os.open(new_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            fcntl.flock(locks[1], fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.rename(new_path, path)
        except OSError as error:
            _remove_tree(new_path)
            for fd in locks:
                os.close(fd)
            raise not_writable(base, error) from error
        return cls(path, locks[0], locks[1], removes_base)

    def write_status(self, status: dict[str, Any]) -> None:
        """Write ``broker.json``; readers see the whole of it or nothing. Raises ConfigError."""
        path = os.path.join(self.path, STATUS_NAME)
        try:
            with open(path + ".tmp", "w", encoding="utf-8") as file:
                json.dump(status, file, indent=1)
            os.rename(path + ".tmp", path)
        except OSError as error:
            raise not_writable(os.path.dirname(self.path), error) from error

    def remove_endpoint(self, name: str) -> None:
        """Remove the socket that a dead process left."""
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, name))

    def close_in_child(self) -> None:
        """Close the locks in a child, with which they would outlive the supervisor."""
        os.close(self._lock_fd)
        os.close(self._directory_fd)

    def remove(self) -> None:
        """Remove the directory at the end of the run."""
        _remove_tree(self.path)
        os.close(self._lock_fd)
        os.close(self._directory_fd)
        if self._removes_base:
            with suppress(OSError):  # not empty: another user's run
                os.rmdir(os.path.dirname(self.path))


def check_base(base: str) -> None:
    """Raises ConfigError if another user could replace what this process creates in ``base``.

    Another user may have created it, in ``/tmp`` for example, and then owns the sockets in it. In a
    directory that many write to, as ``/tmp`` itself, the sticky bit keeps others from doing so.
    """
    status = os.lstat(base)
    if not stat.S_ISDIR(status.st_mode):
        kind = "a link" if stat.S_ISLNK(status.st_mode) else "not one"
        raise ConfigError("runtime.dir", base, f"a directory; it is {kind}")
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            "runtime.dir",
            base,
            f"a directory owned by the broker's user; user {status.st_uid} owns it",
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX:
        raise ConfigError(
            "runtime.dir", base, "a directory that no other user can write to (chmod go-w)"
        )


def not_writable(base: str, error: OSError) -> ConfigError:
    """The error for a runtime directory that cannot be written."""
    return ConfigError("runtime.dir", base, f"a writable directory ({error.strerror})")


def sweep(base: str) -> list[str]:
    """Remove the runtime directories below ``base`` whose supervisor is dead.

    Returns their names.
    """
    removed = []
    for entry in os.scandir(base):
        if not entry.name.startswith(PREFIX) or not entry.is_dir(follow_symlinks=False):
            continue
        if entry.stat(follow_symlinks=False).st_uid != os.geteuid() or not _is_abandoned(
            entry.path
        ):
            continue
        _remove_tree(entry.path)
        removed.append(entry.name)
        logger.info("removed %s, which a killed broker left behind", entry.path)
    return removed


def _is_abandoned(path: str) -> bool:
    """Whether ``path`` is a runtime directory whose lock is not held."""
    try:
        fd = os.open(os.path.join(path, LOCK_NAME), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False  # not one of ours
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _remove_tree(path: str) -> None:
    import shutil  # not needed for a start that has nothing to remove

    shutil.rmtree(path, ignore_errors=True)
