"""What clients have used of their quotas."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.ipc.calls.base import NETWORK, Nothing
from kbroker.ipc.operation import CallOperation

FIGURES_DEADLINE_MS = 1_000
# BOUND: of one network process; those that have exceeded their quotas come first.
FIGURES_MAX = 1_000


class QuotaFigure(NamedTuple):
    """A quota of all that share it: a user, a client id ("": all), or both. used: units since its
    cell was taken, of all processes; bound: units a second. throttle_ms: for how long its clients
    have to wait now.
    """

    quota: str
    user: str
    client_id: str
    bound: float
    used: float
    throttle_ms: int


QUOTA_FIGURES = CallOperation(
    "quota_figures", Nothing, list[QuotaFigure], (NETWORK,), FIGURES_DEADLINE_MS
)
