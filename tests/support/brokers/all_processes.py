"""The processes of a broker that has just started."""

from __future__ import annotations

from kbroker.testing import Broker, wait_until


def wait_until_all_serve(broker: Broker) -> None:
    """A broker responds before the last of its processes serves."""
    wait_until(lambda: "processes are ready" in broker.log_text, 60, "all processes are ready")


def all_pids(broker: Broker) -> dict[str, int]:
    """Every process by its title, once all serve."""
    wait_until_all_serve(broker)
    return broker.pids
