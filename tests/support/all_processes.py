"""The processes of a broker that has just started."""

from __future__ import annotations

from kbroker.testing import Broker, wait_until


def all_pids(broker: Broker) -> dict[str, int]:
    """Every process by its title, once all are serving: a broker responds before the last one
    is.
    """
    wait_until(lambda: "processes are ready" in broker.log_text, 60, "all processes are ready")
    return broker.pids
