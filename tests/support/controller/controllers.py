"""Controllers whose brokers accept everything at once, with unlimited room."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kbroker.cluster.control_requests import ControlRequest, ControlResponse
from kbroker.controller.configs.configs import ConfigsChanged
from kbroker.controller.election.active_controller import ActiveController
from kbroker.controller.state.state import ClusterState
from kbroker.ipc.pending import Pending
from kbroker.metastore.settled import SettledStore


def resolved(value: Any = None) -> Pending[Any]:
    pending: Pending[Any] = Pending()
    pending.resolve(value)
    return pending


class TakesAll:
    """The brokers and the configs of a controller: records what they get."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, ControlRequest]] = []
        self.configs: list[ConfigsChanged] = []

    def send(self, broker_id: int, request: ControlRequest) -> Pending[ControlResponse]:
        self.sent.append((broker_id, request))
        return resolved(ControlResponse())

    def set_live(self, brokers: Any) -> None:
        pass

    def set_configs(self, changed: ConfigsChanged) -> Pending[dict[str, int]]:
        self.configs.append(changed)
        return resolved({})

    def forget_topic(self, name: str) -> None:
        pass


class EndlessRoom:
    def check(self, name: str, hosted: int) -> None:
        pass

    def plan(self, name: str, hosted: int) -> None:
        pass

    def reserve(self, name: str, partitions: Collection[int]) -> None:
        pass

    def give_back(self, name: str, partitions: Collection[int]) -> None:
        pass


def controller_of(
    state: ClusterState, store: SettledStore | None = None, brokers: TakesAll | None = None
) -> ActiveController:
    """A controller without a store can only plan."""
    nobody: Any = None
    takes_all = brokers or TakesAll()
    return ActiveController(state, store or nobody, takes_all, takes_all)
