"""Topics: created, deleted and grown by the elected controller, and created by any broker that
needs one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.cluster.topic_ids import TopicIds
from kbroker.controller.election.active_controller import ActiveController
from kbroker.controller.state.state import ClusterState
from kbroker.controller.topics.topic_admin import TopicAdmin
from kbroker.controller.topics.topic_creation import TopicCreation, is_led
from kbroker.controller.topics.topic_requests import TopicRequests
from kbroker.hosting.room import Room
from kbroker.ipc import calls
from kbroker.ipc.process_table import Address
from kbroker.workers.controller.store_start import has_all_directories
from kbroker.workers.plugged import make_policies

if TYPE_CHECKING:
    from kbroker.workers.controller.process import ControllerWorker


class TopicServices:
    """Made by the controller process, after its store and its replicas."""

    def __init__(self, process: ControllerWorker, topic_ids: TopicIds) -> None:
        self._process = process
        self.policies = make_policies(process.config, process.context.properties)
        self._creation = TopicCreation(
            process.context.broker_id,
            process.own_store,
            process.own_events,
            topic_ids,
            self.requests,
            self._room,
            self._is_led,
            process.sleep,
        )

    def requests(self, state: ClusterState) -> TopicRequests:
        """The rules, with the configs of this broker."""
        configs = self._process.configs
        return TopicRequests(
            state,
            lambda name: configs.config[name],
            configs.validate_topic,
            lambda: configs.config.is_cordoned,
            is_shared=self._process.store.is_shared,
            policies=self.policies,
        )

    def admin(self, controller: ActiveController) -> TopicAdmin:
        """What an elected controller serves clients with."""
        process = self._process
        return TopicAdmin(
            controller,
            self.requests(controller.state),
            self._room,
            process.rpc.sleep,
            lambda: has_all_directories(process.context),
            process.mutations.of,
        )

    async def create(self, sender: Address, asked: calls.CreateTopics) -> list[calls.TopicResult]:
        """Create topics if this broker is the controller; auto-creations are done by any broker."""
        candidacy = self._process.candidacy
        if candidacy.present is None and asked.auto:
            candidacy.check_connected()
            return await self._creation.create(asked)
        return await candidacy.served(lambda elected: elected.topics.create_topics)(sender, asked)

    def _room(self) -> Room:
        return Room(self._process.slots, self._process.hosting.replicas)

    def _is_led(self, topic: str) -> bool:
        """Whether this broker knows a leader for each partition."""
        known = self._process.hosting.metadata.topic(topic)
        return known is not None and is_led(known.partitions.values())
