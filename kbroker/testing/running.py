"""What runs in a ``with`` block."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class RunningInBlock:
    """Started at its beginning, and closed at its end, or if the start fails."""

    def start(self) -> Self:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
