"""A producer in a ``with`` block."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class FlushedAtEnd:
    """Its records are flushed when the block ends, unless by an error, and it is closed."""

    def flush(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.flush()
        finally:
            self.close()
