"""``kbroker top`` in a terminal: looks again and again, and does what keys say."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kbroker.cli.local.attached import AttachedBroker
from kbroker.cli.local.board import BoardTotals, look, look_again
from kbroker.cli.local.runs import Run
from kbroker.cli.local.view import BoardView, screen
from kbroker.descriptors import readable

_HOME, _REST, _LINE = "\x1b[H", "\x1b[J", "\x1b[K\r\n"
_QUIT = "q\x03\x04"
# The first rates are those of so long.
FIRST_S = 0.5


class Live:
    """runs: the brokers to choose from. keys, output: descriptors of the terminal. rounds: 0: until
    it is ended.
    """

    def __init__(
        self, runs: Sequence[Run], keys: int, output: int, delay_s: float, rounds: int
    ) -> None:
        self._runs = runs
        self._keys = keys
        self._output = output
        self._delay_s = delay_s
        self._rounds = rounds
        self._at = 0
        self._view = BoardView(others=len(runs) - 1)
        self._board: dict[str, Any] | None = None
        self._is_left = False
        self._is_switched = False

    def run(self) -> bool:
        """Until a key, or the last round, or the broker has ended: then True."""
        rounds = 0
        while not self._is_left:
            broker = AttachedBroker(self._runs[self._at])
            self._view = replace(self._view, number=self._at + 1)
            self._board, self._is_switched = None, False
            before = look(broker)
            self._wait(min(self._delay_s, FIRST_S))
            while not (self._is_left or self._is_switched):
                if not broker.is_running:
                    return True
                before = self._round(broker, before)
                rounds += 1
                if rounds == self._rounds:
                    return False
                self._wait(self._delay_s)
        return False

    def _round(self, broker: AttachedBroker, before: BoardTotals) -> BoardTotals:
        now, self._board = look_again(broker, before)
        self._draw()
        return now

    def _draw(self) -> None:
        if self._board is None:
            return
        columns, lines = _size(self._output)
        rows = screen(self._board, self._view, columns, lines)
        text = _HOME + _LINE.join(rows) + "\x1b[K" + _REST
        data = text.encode("utf-8", "replace")
        while data:
            data = data[os.write(self._output, data) :]

    def _wait(self, seconds: float) -> None:
        """Until the next round; keys are obeyed at once."""
        until = time.monotonic() + seconds
        while not (self._is_left or self._is_switched):
            left = until - time.monotonic()
            if left <= 0:
                return
            if readable([self._keys], left):
                self._obey(os.read(self._keys, 64).decode("utf-8", "replace"))

    def _obey(self, text: str) -> None:
        if not text:  # the terminal is gone
            self._is_left = True
            return
        if len(text) > 1 and text[0] == "\x1b":
            return  # an arrow, or the like
        for key in text:
            if key in _QUIT and not self._view.is_typing:
                self._is_left = True
            elif key == "b" and not self._view.is_typing and len(self._runs) > 1:
                self._at = (self._at + 1) % len(self._runs)
                self._view = replace(self._view, filter="")
                self._is_switched = True
            else:
                self._view = self._view.pressed(key)
        self._draw()


def _size(output: int) -> tuple[int, int]:
    """Columns and lines; a terminal may not know."""
    size = os.get_terminal_size(output)
    return size.columns or 80, size.lines or 24
