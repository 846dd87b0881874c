"""Keys and values as their schemas in a registry say, decoded in a process beside this one.

That process may be as slow, as large and as broken as a registry and its values can make it
(``kbroker.schemas.process``): whoever asks waits ``WAIT_S`` at most, and gets what is decoded by
then. After that it is killed. If the registry did not answer, it is not asked again for ``REST_S``;
if a value took the time, or the life of the process, that value is not decoded again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import kbroker
from kbroker.descriptors import is_writable, readable
from kbroker.schemas.framing import Framed
from kbroker.schemas.process import BEGUN

# A page waits WAIT_S for answers, and as long for a process that begins, which has START_S for it:
# its libraries take a second of a processor.
START_S = 60.0
WAIT_S = 2.5
REST_S = 10.0
# BOUND: bytes of a value that is decoded, of all of a page, and of what is answered.
VALUE_BYTES_MAX = 256 << 10
PAGE_BYTES_MAX = 4 << 20
ANSWER_BYTES_MAX = 32 << 20
HARMFUL_MAX = 1000


class _Silence(Exception):
    """It has not answered in time, or has ended. The text says what."""


class _Late(_Silence):
    """It has not answered in time."""


class _Beginning(_Silence):
    """It is not there yet."""


class Decoding:
    """Used by any thread; close it in the end. settings: of the registry's client."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._rest_until = 0.0
        self._why = ""
        self._received = b""
        self._has_begun = False
        self._is_ready = False
        self._must_be_ready_at = 0.0
        # BOUND: values that are not tried again.
        self._harmful: dict[tuple[int | str, bytes], str] = {}

    def decode(self, values: Sequence[Framed]) -> list[Mapping[str, Any]]:
        """An answer for each, of ``kbroker.schemas.process``."""
        if not values:
            return []
        if not self._lock.acquire(timeout=WAIT_S):
            return [_error(each, "others are being decoded") for each in values]
        try:
            return self._decode(values)
        finally:
            self._lock.release()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _end(process)

    def _decode(self, values: Sequence[Framed]) -> list[Mapping[str, Any]]:
        chosen, left = [], PAGE_BYTES_MAX
        for number, each in enumerate(values):
            if len(each.payload) <= min(VALUE_BYTES_MAX, left):
                left -= len(each.payload)
                chosen.append(number)
        answers: dict[int, Mapping[str, Any]] = {}
        why = f"larger than is decoded ({VALUE_BYTES_MAX} bytes, {PAGE_BYTES_MAX} of a page)"
        give_up = time.monotonic() + WAIT_S
        todo = [number for number in chosen if _name(values[number]) not in self._harmful]
        while todo:
            try:
                for number, answer in zip(
                    list(todo), self._answers([values[each] for each in todo]), strict=True
                ):
                    answers[number] = answer
                    todo.remove(number)
            except _Beginning as silence:
                why = str(silence)
                break
            except _Silence as silence:
                self.close()
                why = str(silence)
                if not self._has_begun:
                    self._rest(why)
                    break
                self._avoid(values[todo.pop(0)])
                why = "others took the time: read again"
                if time.monotonic() > give_up:
                    break
        return [
            answers.get(number) or _error(each, self._harmful.get(_name(each), why))
            for number, each in enumerate(values)
        ]

    def _avoid(self, value: Framed) -> None:
        while len(self._harmful) >= HARMFUL_MAX:
            del self._harmful[next(iter(self._harmful))]
        self._harmful[_name(value)] = "its decoding takes too much time or memory"

    def _answers(self, values: Sequence[Framed]) -> Iterator[Mapping[str, Any]]:
        self._has_begun = False
        if time.monotonic() < self._rest_until:
            raise _Silence(self._why)
        process = self._running()
        rows = [[each.schema, base64.b64encode(each.payload).decode()] for each in values]
        deadline = time.monotonic() + WAIT_S
        self._has_begun = False
        self._send(process, json.dumps(rows).encode() + b"\n", deadline)
        for _ in values:
            line = self._line(process, deadline)
            if line == BEGUN:
                self._has_begun = True
                line = self._line(process, deadline)
            self._has_begun = False
            try:
                yield json.loads(line)
            except ValueError:
                raise _Silence("the decoder has failed") from None

    def _running(self) -> subprocess.Popen[bytes]:
        """Raises _Silence."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._begin()
        process = self._process
        assert process is not None
        if not self._is_ready:
            try:
                problem = self._line(process, time.monotonic() + WAIT_S)
            except _Late:
                if time.monotonic() < self._must_be_ready_at:
                    raise _Beginning("the decoder is beginning: read again") from None
                raise
            if problem:
                raise _Silence(problem.decode())
            self._is_ready = True
        return process

    def _begin(self) -> None:
        """Raises _Silence."""
        place = str(Path(kbroker.__file__).parent.parent)
        self._received = b""
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "kbroker.schemas.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={**os.environ, "PYTHONPATH": place},
            start_new_session=True,
        )
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        self._is_ready = False
        self._must_be_ready_at = time.monotonic() + START_S
        settings = json.dumps(self._settings).encode() + b"\n"
        self._send(process, settings, time.monotonic() + WAIT_S)

    def _send(self, process: subprocess.Popen[bytes], data: bytes, deadline: float) -> None:
        assert process.stdin is not None
        place = process.stdin.fileno()
        rest = memoryview(data)
        while rest:
            if not is_writable(place, deadline - time.monotonic()):
                raise _Late(f"nothing was decoded within {WAIT_S:g} s")
            try:
                rest = rest[os.write(place, rest) :]
            except BlockingIOError:
                continue
            except OSError:
                raise _Silence(_ENDED) from None

    def _line(self, process: subprocess.Popen[bytes], deadline: float) -> bytes:
        assert process.stdout is not None
        place = process.stdout.fileno()
        while b"\n" not in self._received:
            if not readable([place], deadline - time.monotonic()):
                raise _Late(f"the registry has not answered within {WAIT_S:g} s")
            piece = os.read(place, 1 << 16)
            if not piece or len(self._received) > ANSWER_BYTES_MAX:
                raise _Silence(_ENDED)
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _rest(self, why: str) -> None:
        if time.monotonic() >= self._rest_until:
            self._rest_until = time.monotonic() + REST_S
            self._why = why


_ENDED = "the decoder has ended"


def _name(value: Framed) -> tuple[int | str, bytes]:
    return value.schema, hashlib.sha256(value.payload).digest()


def _error(value: Framed, why: str) -> dict[str, Any]:
    return {"schema": value.schema, "error": why}


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            try:
                stream.close()
            except OSError:
                continue  # what was not written is of no use
