"""Tells systemd how the broker is (sd_notify(3)): that it serves, that it stops, that it lives;
and those who wait for a line in the log of a container that it serves.

Only the supervisor speaks: the variables are taken out of the environment that children inherit.
Without a service manager that listens, nothing happens.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping, Sequence

logger = logging.getLogger(__name__)

SOCKET, WATCHDOG_US, WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
# A sign of life is due after this share of what the watchdog allows, as systemd advises.
ALIVE_SHARE = 0.5


class ServiceManager:
    """now_s of all methods: a monotonic time.

    ready_lines: logged when the broker serves.
    """

    def __init__(
        self, environment: MutableMapping[str, str], ready_lines: Sequence[str] = ()
    ) -> None:
        self._ready_lines = ready_lines
        address = environment.pop(SOCKET, "")
        allowed_us = environment.pop(WATCHDOG_US, "")
        watched = environment.pop(WATCHDOG_PID, "") in ("", str(os.getpid()))
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if self._address:
            kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            self._socket = socket.socket(socket.AF_UNIX, kind)
        is_limited = watched and allowed_us.isascii() and allowed_us.isdigit()
        # None: nobody waits for signs of life.
        self._every_s = int(allowed_us) / 1e6 * ALIVE_SHARE if is_limited else None
        self._next_s = 0.0

    def ready(self, status: str) -> None:
        """All processes serve; status: what ``systemctl status`` shows."""
        for line in self._ready_lines:
            logger.info("%s", line, extra={"event": "service_manager.ready-line"})
        self._tell(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        """From here on, no sign of life is expected."""
        self._tell("STOPPING=1\nSTATUS=stopping")

    def alive(self, now_s: float) -> None:
        """The loop has turned."""
        if self._every_s is not None and now_s >= self._next_s:
            self._next_s = now_s + self._every_s
            self._tell("WATCHDOG=1")

    def due_s(self) -> float | None:
        """When the loop must have turned; None if nobody waits for it."""
        return None if self._every_s is None else self._next_s

    def _tell(self, text: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(text.encode(), self._address)
        except OSError:
            return  # the next sign of life tries again; a manager that is gone stops nothing
