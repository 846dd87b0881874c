"""How far the controller process has come, and what waits for it to have an image."""

from __future__ import annotations

import enum

from kbroker.ipc.pending import Pending


class Phase(enum.Enum):
    """SETTING_UP: its parts are being made. STARTING: settings, ACLs, tokens and features are read
    from the store, then it registers. CATCHING_UP: a restarted one has registered anew, and the
    active controller has not said what there is. RUNNING: processes have its image.
    """

    SETTING_UP = enum.auto()
    STARTING = enum.auto()
    CATCHING_UP = enum.auto()
    RUNNING = enum.auto()


class ImageGate:
    """Processes wait here until there is an image to give to them."""

    def __init__(self) -> None:
        self.is_open = False
        self._waiting: list[Pending[None]] = []

    async def passed(self) -> None:
        """Returns once there is an image."""
        if not self.is_open:
            pending: Pending[None] = Pending()
            self._waiting.append(pending)
            await pending

    def open(self) -> None:
        """There is one."""
        self.is_open = True
        waiting, self._waiting = self._waiting, []
        for pending in waiting:
            pending.resolve()
