"""Limits that tie several settings together, each with its reason.

``check_limits`` rejects what cannot work, ``advice`` warns of what works badly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.config.protocol_version import ALLOWED, find_version
from kbroker.config.table.rules import core_count
from kbroker.errors import ConfigError

if TYPE_CHECKING:
    from kbroker.config.loader import BrokerConfig

PROTOCOL = "inter.broker.protocol.version"
_DEDUPE_BYTES_MIN = 1 << 20
ROLES = "process.roles"
VOTERS = "controller.quorum.voters"
SERVERS = "controller.quorum.bootstrap.servers"
_NO_KRAFT = (
    "; kbroker has no KRaft quorum of several nodes: without zookeeper.connect a broker is alone, "
    "and a cluster of kbrokers needs zookeeper.connect"
)
# In cordoned.log.dirs: every directory.
ALL_CORDONED = "*"


def check_limits(config: BrokerConfig) -> None:
    """Raise ConfigError for the first limit that does not hold."""
    _check_identity(config)
    _check_quorum(config)
    _check_times(config)
    _check_places(config)
    _check_connections(config)
    _check_replication(config)


def _refuse(config: BrokerConfig, name: str, allowed: str) -> None:
    raise ConfigError(name, config[name], allowed)


def _check_identity(config: BrokerConfig) -> None:
    broker_id = config["broker.id"]
    if config["node.id"] != broker_id:
        _refuse(config, "node.id", f"the same as broker.id ({broker_id})")
    if not config["broker.id.generation.enable"]:
        # Without generated ids, there is no other source for it.
        if broker_id < 0:
            _refuse(config, "broker.id", "at least 0, because broker.id.generation.enable=false")
    elif broker_id < -1:
        _refuse(config, "broker.id", "at least -1")
    elif not config.is_set("node.id") and broker_id > config["reserved.broker.max.id"]:
        # Higher numbers belong to brokers with configured ids. KRaft does not generate ids, so a
        # node.id may be any.
        limit = config["reserved.broker.max.id"]
        _refuse(config, "broker.id", f"at most reserved.broker.max.id ({limit})")


def _check_quorum(config: BrokerConfig) -> None:
    """Nodes of a KRaft cluster would serve as so many clusters of one."""
    if config.uses_zookeeper:
        return

    def refuse(name: str, allowed: str) -> None:
        raise ConfigError(name, ",".join(config[name]), allowed + _NO_KRAFT)

    roles = config[ROLES]
    if roles and set(roles) != {"broker", "controller"}:
        refuse(ROLES, "broker,controller")
    voters = [voter.partition("@")[0].strip() for voter in config[VOTERS]]
    own = config["node.id"]
    is_alone = len(voters) <= 1 and (own < 0 or voters in ([], [str(own)]))
    if not is_alone:
        refuse(VOTERS, f"this node alone ({max(own, 0)}@host:port)")
    servers = config[SERVERS]
    if len(servers) > 1 or any(map(config.names_other_controller, servers)):
        refuse(SERVERS, "the address of this node alone")


def _check_times(config: BrokerConfig) -> None:
    for name in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
        # 0 would delete what was just written; a negative age means "never".
        if config[name] == 0:
            _refuse(config, name, "at least 1, or -1 for no limit")
    for name, low in (("log.roll.ms", 1), ("log.roll.jitter.ms", 0), ("log.flush.interval.ms", 0)):
        if config[name] is not None and config[name] < low:
            _refuse(config, name, f"at least {low}")
    if config["connections.max.idle.ms"] == 0:
        _refuse(config, "connections.max.idle.ms", "at least 1, or -1 for never")
    # The second is the upper limit of the first.
    backoff_max = config["worker.restart.backoff.max.ms"]
    if config["worker.restart.backoff.ms"] > backoff_max:
        allowed = f"at most worker.restart.backoff.max.ms ({backoff_max})"
        _refuse(config, "worker.restart.backoff.ms", allowed)
    shortest, longest = config["group.min.session.timeout.ms"], "group.max.session.timeout.ms"
    if shortest > config[longest]:
        _refuse(config, longest, f"at least group.min.session.timeout.ms ({shortest})")
    for what in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"):
        low = config[f"group.consumer.min.{what}"]
        high = config[f"group.consumer.max.{what}"]
        if low > high:
            name = f"group.consumer.max.{what}"
            _refuse(config, name, f"at least group.consumer.min.{what} ({low})")
        if not low <= config[f"group.consumer.{what}"] <= high:
            allowed = f"from {low} to {high}, the bounds of group.consumer.min and max.{what}"
            _refuse(config, f"group.consumer.{what}", allowed)
    session_ms = config["group.consumer.session.timeout.ms"]
    if config["group.consumer.heartbeat.interval.ms"] >= session_ms:
        # The member would be removed before its first heartbeat could arrive.
        allowed = f"below group.consumer.session.timeout.ms ({session_ms})"
        _refuse(config, "group.consumer.heartbeat.interval.ms", allowed)
    low = config["log.cleaner.min.compaction.lag.ms"]
    if low > config["log.cleaner.max.compaction.lag.ms"]:
        allowed = f"at least log.cleaner.min.compaction.lag.ms ({low})"
        _refuse(config, "log.cleaner.max.compaction.lag.ms", allowed)


def _check_places(config: BrokerConfig) -> None:
    if not config.log_dirs:
        _refuse(config, "log.dirs", "at least one directory")
    if not set(config["cordoned.log.dirs"]) <= {*config.log_dirs, ALL_CORDONED}:
        _refuse(config, "cordoned.log.dirs", "directories that are in log.dirs, or *")
    # Parsing them rejects what is malformed, given twice or not supported.
    _ = config.listeners, config.advertised_listeners
    for name in ("socket.send.buffer.bytes", "socket.receive.buffer.bytes"):
        if config[name] < -1 or config[name] == 0:
            _refuse(config, name, "at least 1, or -1 for the operating system's choice")


def _check_connections(config: BrokerConfig) -> None:
    # No client could connect any more to change it back.
    for name in ("max.connections", "max.connection.creation.rate"):
        if config[name] == 0:
            _refuse(config, name, "at least 1")
    name = "max.connections.per.ip"
    if config[name] == 0 and not config.max_connections_per_ip_overrides:
        _refuse(config, name, "at least 1, unless max.connections.per.ip.overrides names addresses")


def _check_inter_broker_listeners(config: BrokerConfig) -> None:
    """In a cluster, each broker must have the listeners that the others connect to."""
    names = {listener.name for listener in config.advertised_listeners or config.listeners}
    allowed = f"the name of an advertised listener ({', '.join(sorted(names))})"
    if config.inter_broker_listener not in names:
        if config["inter.broker.listener.name"] is None:
            other = f"{allowed}, or inter.broker.listener.name with such a name"
            _refuse(config, "security.inter.broker.protocol", other)
        _refuse(config, "inter.broker.listener.name", allowed)
    if config.control_listener not in names:
        _refuse(config, "control.plane.listener.name", allowed)


def _check_replication(config: BrokerConfig) -> None:
    # A standalone broker accepts the files of later Kafkas, too.
    if config.uses_zookeeper:
        if find_version(config[PROTOCOL]) is None:
            _refuse(config, PROTOCOL, ALLOWED)
        _check_inter_broker_listeners(config)
    # The wait would exceed the connection's lifetime, so that every idle fetch failed.
    wait_ms, timeout_ms = config["replica.fetch.wait.max.ms"], config["replica.socket.timeout.ms"]
    if wait_ms > timeout_ms:
        allowed = f"at most replica.socket.timeout.ms ({timeout_ms})"
        _refuse(config, "replica.fetch.wait.max.ms", allowed)
    # A follower waiting for data would count as lagging.
    lag_ms = config["replica.lag.time.max.ms"]
    if wait_ms > lag_ms:
        allowed = f"at most replica.lag.time.max.ms ({lag_ms})"
        _refuse(config, "replica.fetch.wait.max.ms", allowed)
    # More acknowledgements than replicas never arrive.
    replicas = config["offsets.topic.replication.factor"]
    acks = config["offsets.commit.required.acks"]
    if not -1 <= acks <= replicas:
        allowed = f"from -1 to offsets.topic.replication.factor ({replicas})"
        _refuse(config, "offsets.commit.required.acks", allowed)
    # With less memory per thread, the offset map holds next to nothing.
    workers = config["log.cleaner.threads"]
    if config["log.cleaner.enable"] and workers:
        if config["log.cleaner.dedupe.buffer.size"] // workers <= _DEDUPE_BYTES_MIN:
            allowed = f"more than {_DEDUPE_BYTES_MIN} for each of log.cleaner.threads"
            _refuse(config, "log.cleaner.dedupe.buffer.size", allowed)


def advice(config: BrokerConfig) -> list[str]:
    """Warnings about settings that are allowed but unwise."""
    warnings = []
    cores = core_count()
    for name, kind in (("num.network.threads", "network"), ("num.io.threads", "io")):
        count = config[name]
        # Kafka's samples have 3 and 8 threads; here these are processes.
        if config.is_set(name) and count > max(2, cores):
            warnings.append(
                f"{name}={count} starts {count} {kind} processes on {cores} cores; when unset, "
                "the number follows the cores"
            )
    if not config.is_set("log.dirs") and not config.is_set("log.dir"):
        warnings.append(
            f"log.dirs is not set; data goes to {config['log.dir']}, which many systems clear at "
            "boot"
        )
    if config["super.users"] and not config["authorizer.class.name"]:
        warnings.append(
            "super.users has no effect without authorizer.class.name: everybody may do everything"
        )
    if not config["log.cleaner.enable"]:
        # Kafka 0.8 shipped sample files with this value, before offsets were kept in a topic.
        warnings.append(
            "log.cleaner.enable=false: topics with cleanup.policy=compact, including "
            "__consumer_offsets and __transaction_state, are not compacted and grow without limit"
        )
    for name in ("share", "streams"):
        if name in config["group.coordinator.rebalance.protocols"]:
            warnings.append(
                f"group.coordinator.rebalance.protocols lists {name}, but groups of that protocol "
                "are not supported yet"
            )
    request_bytes = config["socket.request.max.bytes"]
    bound = config["queued.max.request.bytes"]
    if 0 < bound < 2 * request_bytes:
        warnings.append(
            f"queued.max.request.bytes={bound} is raised to fit two requests of "
            f"socket.request.max.bytes ({request_bytes})"
        )
    if config["message.max.bytes"] > request_bytes:
        warnings.append(
            f"message.max.bytes={config['message.max.bytes']} cannot be reached: a request of "
            f"more than socket.request.max.bytes={request_bytes} closes the connection"
        )
    return warnings
