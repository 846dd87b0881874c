"""The metadata store at start: in ZooKeeper, or embedded and completed from the logs on disk."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.adopt.at_start import look_at_topics, refuse_kafkas, topics_to_serve
from kbroker.adopt.errors import Refusal
from kbroker.adopt.unknown_logs import UnknownLogs, look_at_unknown
from kbroker.config.loader import BrokerConfig
from kbroker.controller.store import completion
from kbroker.controller.store.topic_nodes import DAMAGED
from kbroker.ipc.pending import Pending
from kbroker.metastore import paths
from kbroker.metastore.embedded import EmbeddedStore
from kbroker.metastore.node_file import NodeFile
from kbroker.metastore.store import Store, StoreFailed
from kbroker.metastore.store_files import FILE_NAME, holds_store, places_of_store
from kbroker.workers.base import ProcessContext

if TYPE_CHECKING:
    from kbroker.metastore.kept_session import KeptSession
    from kbroker.metastore.zookeeper_settings import ZooKeeperSettings

logger = logging.getLogger(__name__)

# How often the end of a session is looked at.
LOOK_MS = 10
SESSION_TIMEOUT = "zookeeper.session.timeout.ms"
# How long a session lasts where nobody has long pauses, and how long a start waits to find out.
SHORT_SESSION_MS, LOOK_MAX_MS = 6_000, 1_000


def open_store(context: ProcessContext, note_request: Callable[[int], None]) -> Store:
    """The store that the configuration names. note_request: is told how many nanoseconds each
    request to ZooKeeper took.

    Raises what ``_embedded_store`` raises, and ConfigError.
    """
    if not context.config.uses_zookeeper:
        return _embedded_store(context)
    # kazoo takes long to import, and is not installed everywhere.
    from kbroker.metastore.session_file import SessionFile
    from kbroker.metastore.zookeeper import ZooKeeperStore
    from kbroker.metastore.zookeeper_settings import settings_of

    settings = fitting_session(context.config, settings_of(context.config))
    file = SessionFile(context.runtime_dir, settings.connect, kept_session(context, settings))
    store = ZooKeeperStore(settings, file)
    store.time_requests(note_request)
    return store


def fitting_session(config: BrokerConfig, settings: ZooKeeperSettings) -> ZooKeeperSettings:
    """The settings with a shorter session, if none is configured and no Kafka is registered, for
    whose pauses the default is as long as it is. A ZooKeeper that cannot be asked says nothing.
    """
    if config.is_set(SESSION_TIMEOUT):
        return settings
    from kbroker.metastore.cluster_identity import NotAsked, registered_brokers

    short = settings._replace(
        session_timeout_ms=SHORT_SESSION_MS, connection_timeout_ms=LOOK_MAX_MS
    )
    try:
        registered = registered_brokers(short)
        kafkas = [number for number, data in registered.items() if is_kafka(data)]
    except NotAsked as error:
        logger.info("sessions last %d ms: cannot ask ZooKeeper who else is in the cluster: %s",
                    settings.session_timeout_ms, error)  # fmt: skip
        return settings
    if kafkas:
        return settings
    logger.info("sessions last %d ms, as all registered brokers are kbrokers and %s is not set",
                SHORT_SESSION_MS, SESSION_TIMEOUT)  # fmt: skip
    return settings._replace(session_timeout_ms=SHORT_SESSION_MS)


def is_kafka(registration: bytes) -> bool:
    """Whether it may be that of a Kafka."""
    try:
        return paths.decode_broker_features(registration) is None
    except DAMAGED:
        return True


def kept_session(context: ProcessContext, settings: ZooKeeperSettings) -> KeptSession:
    """What is kept of the session in the first data directory that can be used."""
    from kbroker.metastore.kept_session import KeptSession

    owner = (context.cluster_id, int(context.broker_id), settings.connect)
    return KeptSession(next(iter(context.clean_start)), owner)


class LastSession:
    """The session of the last run of this broker. Made before the present one is kept."""

    def __init__(self, context: ProcessContext, sleep: Callable[[int], Pending[None]]) -> None:
        self._sleep = sleep
        self._settings: ZooKeeperSettings | None = None
        self._session: tuple[int, bytes] | None = None
        if context.config.uses_zookeeper and context.incarnation == 1:
            from kbroker.metastore.zookeeper_settings import settings_of

            self._settings = settings_of(context.config)
            self._session = kept_session(context, self._settings).read()

    async def end(self, session_id: int) -> bool:
        """End it, if it is the one that has this broker's registration; once."""
        session, self._session = self._session, None
        if session is None or session[0] != session_id or self._settings is None:
            return False
        from kbroker.metastore.kept_session import SessionEnding

        ending = SessionEnding(self._settings, session)
        while not ending.is_done:
            await self._sleep(LOOK_MS)
        if ending.has_ended:
            logger.info("ended session 0x%x of the last run, which was killed", session_id)
        return ending.has_ended


def _embedded_store(context: ProcessContext) -> EmbeddedStore:
    """The embedded store, with everything it must contain; missing topics are added from the logs
    on disk.

    Raises StoreFailed, WrongCluster, Refusal, OSError, and ValueError, KeyError or TypeError for
    documents that kbroker cannot have written.
    """
    was_clean, config = context.clean_start, context.config
    places = list(was_clean)
    place = store_directory(places)
    store = None
    has_store = holds_store(place)
    if not has_store:
        refuse_kafkas(config.log_dirs)
        store = look_at_topics(places, was_clean)
    file = NodeFile(place)
    is_new = completion.is_empty(file)
    if has_store and is_new:
        store = look_at_topics(places, was_clean)  # a first start was interrupted
    unknown = None if is_new else _look_at_unknown(context, file)
    adopted = [] if store is None else topics_to_serve(store)
    first_id = 0 if store is None else store.next_producer_id
    if unknown is not None:
        adopted += unknown.adopted
    completion.complete(file, context.cluster_id, context.broker_id, adopted, first_id)
    if unknown is not None:
        completion.write_grown(file, context.broker_id, unknown.grown)
    if not is_new and (unknown is not None or file.damage is not None):
        completion.skip_producer_ids(file, context.broker_id)
    return EmbeddedStore(file)


def store_directory(log_dirs: list[str]) -> str:
    """The log directory with the metadata store, among those that can be used.

    In the one that has it, in the first at the first start. The order of ``log.dirs`` may change;
    metadata must not get lost by it.
    """
    having = places_of_store(log_dirs)
    if len(having) > 1:
        raise StoreFailed(
            f"{FILE_NAME} is in several log directories: {', '.join(having)}; they belong to "
            "different brokers. Keep the one with this broker's topics, and move the others away"
        )
    directory = having[0] if having else log_dirs[0]
    os.makedirs(directory, exist_ok=True)
    return directory


def has_all_directories(context: ProcessContext) -> bool:
    """Whether every directory of ``log.dirs`` is in use and none has failed."""
    return not any(context.failed_log_dirs[: len(context.config.log_dirs)])


def _look_at_unknown(context: ProcessContext, file: NodeFile) -> UnknownLogs | None:
    places = list(context.clean_start)
    try:
        return look_at_unknown(
            file, places, context.clean_start, all_usable=has_all_directories(context)
        )
    except Refusal as refusal:
        if context.incarnation == 1:
            raise
        # The others continue to serve; this is no reason to stop them.
        logger.error("the metadata is left unchanged: %s", refusal)
        return None
