"""Three brokers with controller and hosting on one store, for one seed: faults, requests of clients
and invariants (``support.simulation.simulated_cluster``).

When the faults end, every broker knows what the store has, leads what it says, and has a slot for
each of its replicas and for nothing else.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from support.simulation.simulated_cluster import Broker, SimulatedCluster, ignore_rejected

from kbroker.cluster.control_requests import PartitionKey
from kbroker.controller.store import persistence
from kbroker.controller.store.topic_nodes import StoredTopic, stored_topics
from kbroker.ipc.calls import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    TopicToCreate,
    TopicToDelete,
    TopicToEnlarge,
    WantedIsr,
)
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.metastore import paths
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.simulated import Faults
from kbroker.metastore.store import StoreOperation
from kbroker.workers.controller.stored_isr import StoredIsr

CLIENT = Address(ProcessKind.NETWORK, 0)
NAMES = ["a", "b", "c"]
STEPS = 15


def befall(cluster: SimulatedCluster) -> None:
    """One random event for one broker."""
    number = cluster.random.randrange(len(cluster.brokers))
    kinds = "crash", "process", "process", "process without journal", "expire", "lose", "lose long"
    kind = cluster.random.choice((*kinds, "kill", "kill", "wall", "isolate"))
    if kind == "wall":
        cluster.walls.raise_wall()
        return
    if kind == "isolate":
        cluster.walls.isolate()
        return
    if not cluster.brokers[number].is_alive:
        return
    if kind == "kill":
        cluster.walls.kill(number)
    elif kind == "crash":
        cluster.restart(number)
    elif kind == "process":
        cluster.restart_process(number)
    elif kind == "process without journal":
        cluster.brokers[number].file.remove()
        cluster.without_journal.add(number)
        cluster.restart_process(number)
    elif kind == "expire":
        cluster.brokers[number].store.expire()
    else:
        outage_ms = cluster.random.randint(1, 4_000 if kind == "lose" else 20_000)
        cluster.brokers[number].store.lose(outage_ms)


def want(cluster: SimulatedCluster) -> None:
    """One request of a client or an operator to a broker that is the controller, or was."""
    broker = cluster.term_began()
    if broker is None or broker.topics is None:
        return
    name = cluster.random.choice(NAMES)
    work: Any
    kinds = (
        "create",
        "create",
        "enlarge",
        "delete",
        "elect",
        "shrink",
        "leave",
        "other",
        "other",
        "move",
        "move",
        "write in-sync replicas",
    )
    match cluster.random.choice(kinds):
        case "create":
            topics = [TopicToCreate(name, cluster.random.randint(1, 3), 2)]
            work = broker.topics.create_topics(CLIENT, CreateTopics(topics))
        case "enlarge":
            more = TopicToEnlarge(name, cluster.random.randint(2, 5))
            work = broker.topics.create_partitions(CLIENT, CreatePartitions([more]))
        case "delete" if not waits_for_nobody(cluster, name):
            work = broker.topics.delete_topics(CLIENT, DeleteTopics([TopicToDelete(name)]))
        case "other":
            meddle(cluster, name)
            return
        case "shrink":
            work = shrink(cluster, broker, name)
        case "write in-sync replicas":
            work = write_isr(cluster)
        case "leave":
            work = leave(cluster, broker)
        case "move":
            work = move(cluster, broker, name)
        case _:
            work = elect(broker, name)
    ignore_rejected(broker, work)


def waits_for_nobody(cluster: SimulatedCluster, name: str) -> bool:
    """The topic may have a replica on a broker that there never was, and its deletion waits."""
    return name == NAMES[0] and name in cluster.moved


def meddle(cluster: SimulatedCluster, name: str) -> None:
    """Another client of the store writes something that a decision of the controller may depend
    on.
    """
    operations = []
    match cluster.random.choice(("config", "mark", "state", "topic")):
        case "config":
            path = paths.topic_config(name)
            config = paths.encode_config({"a": str(cluster.random.randrange(100))})
            kind = "create" if cluster.tree.exists(path) is None else "set"
            notice = paths.encode_config_change(path)
            operations = [
                StoreOperation(kind, path, config),
                StoreOperation("create", paths.CONFIG_CHANGE, notice, sequential=True),
            ]
        case "mark" if cluster.tree.exists(paths.delete_topic(name)) is None:
            if waits_for_nobody(cluster, name):
                return
            operations = [StoreOperation("create", paths.delete_topic(name))]
        case "state" if cluster.tree.exists(paths.partition_state(name, 0)) is not None:
            # An older leader changes the ISR, not the leader.
            node = cluster.tree.get(paths.partition_state(name, 0))
            operations = [StoreOperation("set", node.path, node.data, node.stat.version)]
        case "topic" if cluster.tree.exists(paths.topic(name)) is None:
            document = paths.encode_topic(None, {0: [2, 0], 1: [1, 2, 0]})
            operations = [StoreOperation("create", paths.topic(name), document)]
    if operations:
        cluster.apply(operations, session_id=1)


async def elect(broker: Broker, name: str) -> None:
    """Elect the first replica of each partition."""
    assert broker.background is not None
    keys = [(name, number) for number in range(3)]
    await broker.background.elections.elect(keys, unclean=False)


async def shrink(cluster: SimulatedCluster, broker: Broker, name: str) -> None:
    """A leader proposes itself as the ISR, or all replicas, based on its known state."""
    assert broker.background is not None
    leader = cluster.random.choice(cluster.brokers)
    wanted = [
        WantedIsr(*told.key, told.leader_epoch, isr, told.partition_epoch)
        for replica in leader.hosting.replicas
        if (told := replica.told).leader == leader.number and told.topic == name
        for isr in ([leader.number], told.replicas)
    ]
    for one in wanted:
        epoch = leader.hosting.broker_epoch
        await broker.background.in_sync.alter(leader.number, epoch, [one])


async def move(cluster: SimulatedCluster, broker: Broker, name: str) -> None:
    """Partitions of a topic get other replicas, or that is cancelled; by request or as tools do."""
    assert broker.background is not None
    cluster.moved.add(name)
    targets: list[list[int] | None] = [None, [0, 1], [1, 2], [2, 0], [2], [0, 1, 2]]
    wanted = {(name, number): cluster.random.choice(targets) for number in range(2)}
    if cluster.random.random() < 0.3:
        if cluster.tree.exists(paths.REASSIGN_PARTITIONS) is None:
            nobody = [0, 9] if name == NAMES[0] else [0, 2]
            data = paths.encode_reassignment({key: b or nobody for key, b in wanted.items()})
            cluster.apply([StoreOperation("create", paths.REASSIGN_PARTITIONS, data)], session_id=1)
        return
    await broker.background.reassigning.alter(wanted)


async def write_isr(cluster: SimulatedCluster) -> None:
    """Leaders without AlterIsr: one writes states itself, of all that it leads, and reports it."""
    leader = cluster.random.choice(cluster.brokers)
    store, changed = SettledStore(leader.store), list[PartitionKey]()
    reports: Any = SimpleNamespace(note=changed.extend)
    isr = StoredIsr(leader.number, leader.hosting.replicas, store, reports)
    for told in [replica.told for replica in leader.hosting.replicas]:
        wanted = cluster.random.choice(([leader.number], told.replicas))
        if told.leader != leader.number or wanted == told.isr:
            continue
        one = WantedIsr(*told.key, told.leader_epoch, wanted, told.partition_epoch)
        (answer,) = await isr.alter_isr([one])
        if answer.state is not None:
            cluster.note_written(leader, one.key, answer.state.partition_epoch)
            leader.hosting.change_isr({one.key: answer.state})
    await cluster.sleep(cluster.random.randint(0, 7_500))
    if changed:
        await persistence.report_isr_changes(store, changed)


async def leave(cluster: SimulatedCluster, broker: Broker) -> None:
    """A broker shuts down, and is started again.

    It does so even if its controller process has been restarted meanwhile: whoever stops a broker
    waits for the supervisor.
    """
    assert broker.background is not None
    leaving = cluster.random.choice(cluster.brokers)
    try:
        await broker.background.shutdowns.shut_down(leaving.number, leaving.hosting.broker_epoch)
    finally:
        if cluster.brokers[leaving.number].slots is leaving.slots:  # it is the same run
            cluster.restart(leaving.number)


def stored(cluster: SimulatedCluster) -> dict[str, StoredTopic]:
    return {topic.name: topic for topic in stored_topics(cluster.tree.subtree(paths.BROKER_TOPICS))}


def is_settled(cluster: SimulatedCluster) -> bool:
    """Whether the brokers' state is that of the store."""
    topics = stored(cluster)
    marked = cluster.tree.children(paths.DELETE_TOPICS)
    if cluster.term_began() is None or topics.keys() & set(marked):
        return False
    if not all(broker.is_told for broker in cluster.brokers):
        return False
    configs = stored_configs(cluster, topics)
    return all(
        knows_all(broker, topics) and hosts_all(cluster, broker, topics) and uses(broker, configs)
        for broker in cluster.brokers
    )


def stored_configs(
    cluster: SimulatedCluster, topics: dict[str, StoredTopic]
) -> dict[str, dict[str, str]]:
    """The configs of topics that have any."""
    nodes = cluster.tree.subtree(paths.TOPIC_CONFIGS)
    configs = {node.path.rpartition("/")[2]: paths.decode_config(node.data) for node in nodes}
    return {name: configs[name] for name in topics if configs.get(name)}


def uses(broker: Broker, configs: dict[str, dict[str, str]]) -> bool:
    used = broker.hosting.image.topic_config
    return all(used.get(name) == config for name, config in configs.items())


def knows_all(broker: Broker, topics: dict[str, StoredTopic]) -> bool:
    """It may still know a topic that was deleted while it was away."""
    for name, topic in topics.items():
        known = broker.hosting.metadata.topic(name)
        if known is None or known.topic_id != topic.topic_id:
            return False
        told = {n: (p.leader, p.leader_epoch, p.isr) for n, p in known.partitions.items()}
        present = enumerate(topic.partitions())
        if told != {n: (p.leader, p.leader_epoch, p.isr) for n, p in present}:
            return False
    return True


def hosts_all(cluster: SimulatedCluster, broker: Broker, topics: dict[str, StoredTopic]) -> bool:
    hosted = {
        replica.told.key: (replica.told.leader, replica.told.leader_epoch)
        for replica in broker.hosting.replicas
    }
    assigned = {
        (name, number): (partition.leader, partition.leader_epoch)
        for name, topic in topics.items()
        for number, partition in enumerate(topic.partitions())
        if broker.number in partition.replicas
    }
    slots = {(name, n) for name, numbers in broker.slots.topics().items() for n in numbers}
    extra = slots - hosted.keys()
    if broker.number in cluster.without_journal:
        # It does not know of replicas whose removal it was not told, until it starts again.
        extra = {key for key in extra if key[0] not in cluster.moved}
    return hosted == assigned and hosted.keys() <= slots and not extra


def simulate(seed: int) -> SimulatedCluster:
    cluster = SimulatedCluster(seed, Faults(loss_per_request=0.01))
    for _ in range(STEPS):
        waited = cluster.sleep(cluster.random.randint(0, 2_500))
        cluster.run_until(lambda waited=waited: waited.done)
        befall(cluster) if cluster.random.random() < 0.4 else want(cluster)
    cluster.faults, cluster.responses_lost = Faults(), 0.0
    cluster.dies_removing = 0.0
    cluster.settle(lambda: is_settled(cluster), within_ms=300_000)
    assert cluster.failures() == []
    return cluster
