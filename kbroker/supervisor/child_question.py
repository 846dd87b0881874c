"""A question that a child process answers before the supervisor forks the others.

kazoo has threads, and the supervisor will fork: a child asks, and ends.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any


def answer_of_child(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``ask`` returns in a child, as a JSON document; ``error`` if the child was killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _reply(writer, ask)
    os.close(writer)
    with open(reader, "rb") as pipe:
        document = pipe.read()
    os.waitpid(child, 0)
    answer: dict[str, Any] = {"error": "the process that asks was killed"}
    if document:
        answer = json.loads(document)
    return answer


def _reply(writer: int, ask: Callable[[], dict[str, Any]]) -> None:
    """In the child: write the answer and exit."""
    status = 1
    try:
        with open(writer, "w") as pipe:
            json.dump(ask(), pipe)
        status = 0
    finally:
        os._exit(status)
