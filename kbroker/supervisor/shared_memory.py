"""Makes the shared regions of a run: those that describe the broker with names, if that is
possible.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable

from kbroker.config.loader import BrokerConfig
from kbroker.errors import ConfigError
from kbroker.ipc.named_memory import (
    DIRECTORY,
    NamedMemory,
    has_package,
    note_run,
    noted_run,
    path_of,
    remove_run,
)
from kbroker.ipc.regions import RegionSizes, SharedRegions

logger = logging.getLogger(__name__)

# With a group that may read, unless the mode is set.
_GROUP_MODE = "0640"


def status_bytes(status: dict[str, object]) -> bytes:
    """The document as it is in the status region."""
    return json.dumps(status).encode()


def make_regions(
    config: BrokerConfig, sizes: RegionSizes, nonce: str, lock_fds: Iterable[int]
) -> tuple[SharedRegions, NamedMemory | None]:
    """The regions, and the names of those that have some.

    lock_fds: of the lock files in the data directories, which say what a killed run has left and
    what this one may leave. Raises ConfigError.
    """
    mode, group = _access(config)
    lock_fds = list(lock_fds)
    for left in {noted_run(fd) for fd in lock_fds} - {None}:
        _remove_left(left or "")
    reason = _why_not()
    if not reason:
        memory = NamedMemory(nonce, mode, group)
        try:
            for fd in lock_fds:
                note_run(fd, nonce)
            return SharedRegions(sizes, memory.create), memory
        except BaseException as error:
            memory.remove()
            if not isinstance(error, OSError):
                raise
            reason = error.strerror or str(error)
    logger.warning(
        "no shared memory with names (%s): this user and root can look at the broker with kbroker "
        "top, but no other user and no other container",
        reason,
    )
    return SharedRegions(sizes), None


def _why_not() -> str:
    """Why there can be no names; empty if nothing is known against them."""
    if not has_package():
        return "the package posix_ipc is missing"
    if not os.path.isdir(DIRECTORY):
        return f"there is no {DIRECTORY}"
    return ""


def _remove_left(nonce: str) -> None:
    try:
        regions = remove_run(nonce)
    except OSError as error:
        logger.warning("cannot remove %s, which a killed broker left: %s", path_of(nonce, "*"),
                       error.strerror)  # fmt: skip
        return
    if regions:
        logger.info("removed %s, which a killed broker left behind", path_of(nonce, "*"))


def _access(config: BrokerConfig) -> tuple[int, int]:
    """Mode and group (-1: the process's own) of what has a name. Raises ConfigError."""
    name, mode = config["shared.memory.group"], config["shared.memory.mode"]
    if not name:
        return int(mode or "0600", 8), -1
    key = "shared.memory.group"
    try:
        import grp  # only for this setting

        group = int(name) if name.isascii() and name.isdigit() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(key, name, "a group of this machine, by name or number") from None
    if os.geteuid() != 0 and group not in (os.getegid(), *os.getgroups()):
        raise ConfigError(key, name, "a group that the broker's user is in (usermod -aG)")
    return int(mode or _GROUP_MODE, 8), group
