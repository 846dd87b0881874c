"""Controlled shutdown: hands over leadership before a broker stops.

The broker asks the controller again and again until nothing remains, or it has asked often enough.
Meanwhile all of its processes serve, so that clients find the new leaders at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from kbroker.cluster.control_requests import PartitionKey
from kbroker.cluster.controller_requests import (
    ControlledShutdown,
    ControllerRequest,
    ControllerResponse,
    ShutdownResponse,
)
from kbroker.config.loader import BrokerConfig
from kbroker.errors import ErrorCode
from kbroker.ipc.pending import Pending, TooLate, run, within
from kbroker.peers.link import LinkFailed

logger = logging.getLogger(__name__)

# How often the metadata is checked between attempts.
LOOK_MS = 100
# How long a stop waits for the store to end the session, and what is left to do after it.
CLOSE_MS, EXIT_MS = 1_000, 200

Ask = Callable[[ControllerRequest], Coroutine[Any, Any, ControllerResponse]]


def patience_s(config: BrokerConfig) -> float:
    """The longest duration of a controlled shutdown; 0 if it is disabled."""
    if not (config.uses_zookeeper and config["controlled.shutdown.enable"]):
        return 0.0
    times, backoff_ms = settings(config)
    timeout_ms: int = config["controller.socket.timeout.ms"]
    return times * (timeout_ms + backoff_ms) / 1000


def session_grace_s(config: BrokerConfig) -> float:
    """How much longer than its share of a stop the controller process may take: 0 if it has no
    session that others see.
    """
    return (CLOSE_MS + EXIT_MS) / 1000 if config.uses_zookeeper else 0.0


def settings(config: BrokerConfig) -> tuple[int, int]:
    """The number of attempts of a controlled shutdown, and the backoff in ms."""
    return config["controlled.shutdown.max.retries"], config["controlled.shutdown.retry.backoff.ms"]


class Leaving:
    """The broker's controlled shutdown. ask: sends to the controller; fails with LinkFailed.
    may_move: whether a partition has another replica that may come to lead it. now_ms: a monotonic
    clock.
    """

    def __init__(
        self,
        me: int,
        ask: Ask,
        may_move: Callable[[PartitionKey], bool],
        config: BrokerConfig,
        sleep: Callable[[int], Pending[None]],
        now_ms: Callable[[], int],
    ) -> None:
        self._me = me
        self._ask = ask
        self._may_move = may_move
        self._config = config
        self._sleep = sleep
        self._now_ms = now_ms
        self._remaining: Sequence[PartitionKey] = ()

    async def hand_over(self, broker_epoch: Callable[[], int]) -> bool:
        """Whether others lead all that they have replicas of. broker_epoch: the present one."""
        times, backoff_ms = settings(self._config)
        logger.info("starting controlled shutdown")
        begun = self._now_ms()
        for attempt in range(1, times + 1):
            reason = await self._try(ControlledShutdown(self._me, broker_epoch()))
            if not reason:
                took_ms = self._now_ms() - begun
                logger.info("controlled shutdown succeeded after %d ms", took_ms)
                return True
            is_last = attempt == times
            what = "stopping all the same" if is_last else f"trying again in {backoff_ms} ms"
            text = "controlled shutdown, attempt %d of %d: %s; %s"
            logger.warning(text, attempt, times, reason, what)
            if not is_last and await self._is_hopeless(backoff_ms):
                text = "no other replica of %d partitions is there; stopping all the same"
                logger.warning(text, len(self._remaining))
                return False
        return False

    async def _is_hopeless(self, backoff_ms: int) -> bool:
        """Wait until the next attempt; True if nobody will lead what remains. A whole cluster is
        stopped: the other brokers are gone, or shut down as well, as the metadata will say.
        """
        until = self._now_ms() + backoff_ms
        while (left_ms := until - self._now_ms()) > 0:
            if self._remaining and not any(map(self._may_move, self._remaining)):
                return True
            await self._sleep(min(left_ms, LOOK_MS))
        return False

    async def _try(self, request: ControlledShutdown) -> str:
        """The reason why partitions remain; empty if there are none."""
        self._remaining = ()
        timer = self._sleep(self._config["controller.socket.timeout.ms"])
        try:
            response = await within(run(self._ask(request)), timer)
        except LinkFailed as error:
            return f"cannot ask the controller: {error}"
        except TooLate:
            return "no response from the controller, or ZooKeeper names none"
        assert isinstance(response, ShutdownResponse)
        if response.error is not ErrorCode.NONE:
            return f"the controller returned {response.error.name}"
        if response.remaining:
            self._remaining = response.remaining
            (topic, number), count = response.remaining[0], len(response.remaining)
            return f"no other broker can lead {count} partitions, {topic}-{number} among them"
        return ""
