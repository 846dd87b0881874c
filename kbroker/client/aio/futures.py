"""Futures of asyncio that nobody may be waiting for."""

from __future__ import annotations

import asyncio
from typing import Any


def retrieved(ended: asyncio.Future[Any]) -> None:
    """The error of a call that was cancelled is nobody's: asyncio shall not report it."""
    if not ended.cancelled():
        ended.exception()
