"""A row of the table of operations (``ipc/calls``)."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

from kbroker.ipc.documents import Read, reader
from kbroker.ipc.process_table import ProcessKind

Q = TypeVar("Q")
A = TypeVar("A")

# A caller may choose another timeout; this is the default of the row.
DEADLINE_MS = 10_000


class CallOperation(NamedTuple, Generic[Q, A]):
    """A row of the table."""

    name: str
    request: type[Q]
    reply: type[A]
    served_by: tuple[ProcessKind, ...]
    deadline_ms: int = DEADLINE_MS

    def make_readers(self) -> tuple[Read, Read]:
        """The readers of the request and of the reply; made once."""
        request: Any = self.request
        reply: Any = self.reply
        return reader(request), reader(reply)

    def read_request(self, document: Any) -> Q:
        """Raises DocumentError."""
        cls: Any = self.request
        request: Q = reader(cls)(document)
        return request

    def read_reply(self, document: Any) -> A:
        """Raises DocumentError."""
        cls: Any = self.reply
        reply: A = reader(cls)(document)
        return reply
