from __future__ import annotations

from typing import Any

import pytest
from support.network.network_process import IO_WORKERS, NetworkProcess

from kbroker._ext.shared.partition_table import CLOSED, LEADER, LOADING, OFFLINE
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest

pytestmark = pytest.mark.unit

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = range(-1, -7, -1)


@pytest.fixture
def process() -> NetworkProcess:
    process = NetworkProcess()
    process.add_topic("t", b"t" * 16, [3, 4])
    process.put_log(3, 5, 20, stable=12)
    process.put_log(4, 0, 0)
    return process


def ask(
    process: NetworkProcess,
    version: int,
    *asked: tuple[int, int],
    topic: str = "t",
    epoch: int = -1,
    **options: Any,
) -> list[Any]:
    """asked: (partition, timestamp)."""
    partition = ListOffsetsRequest.ListOffsetsPartition
    request = ListOffsetsRequest(
        replica_id=options.pop("replica_id", -1),
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name=topic,
                partitions=[
                    partition(
                        partition_index=number,
                        timestamp=timestamp,
                        current_leader_epoch=epoch,
                        max_num_offsets=options.get("max_num_offsets", 1),
                    )
                    for number, timestamp in asked
                ],
            )
        ],
        isolation_level=options.get("isolation_level", 0),
    )
    response = process.ask(request, version)
    assert [t.name for t in response.topics] == [topic]
    partitions: list[Any] = response.topics[0].partitions
    assert [p.partition_index for p in partitions] == [number for number, _ in asked]
    return partitions


@pytest.mark.parametrize("version", range(1, 12))
def test_list_offsets_ends_of_the_log_in_every_version(
    process: NetworkProcess, version: int
) -> None:
    (latest,) = ask(process, version, (0, LATEST))
    (earliest,) = ask(process, version, (0, EARLIEST))
    assert (latest.error_code, latest.offset, latest.timestamp) == (0, 20, -1)
    assert (earliest.error_code, earliest.offset, earliest.timestamp) == (0, 5, -1)
    assert latest.leader_epoch == (0 if version >= 4 else -1)
    assert process.rpc.calls == []


def test_list_offsets_read_committed_stops_at_the_last_stable_offset(
    process: NetworkProcess,
) -> None:
    assert ask(process, 2, (0, LATEST), isolation_level=1)[0].offset == 12


def test_list_offsets_asked_by_a_follower_is_the_log_end(process: NetworkProcess) -> None:
    process.table.publish(3, log_start_offset=5, log_end=(25, 0, 0), high_watermark=(20, 0, 0))
    assert ask(process, 5, (0, LATEST), replica_id=1)[0].offset == 25
    assert ask(process, 5, (0, LATEST))[0].offset == 20


@pytest.mark.parametrize("version", range(1, 12))
def test_list_offsets_by_timestamp_asks_the_owner(process: NetworkProcess, version: int) -> None:
    answer = {"offset": 7, "timestamp": 1001, "leader_epoch": 0}
    process.set_each_response("list_offsets", lambda to, *args: answer)
    (found,) = ask(process, version, (0, 1000))
    assert (found.error_code, found.offset, found.timestamp) == (0, 7, 1001)
    to, _, _, args = process.rpc.calls[0]
    assert to == Address(ProcessKind.IO_WORKER, 3 % IO_WORKERS)
    assert args == {"asked": [[3, 1000, 0]]}


def test_list_offsets_nothing_that_new_is_minus_one(process: NetworkProcess) -> None:
    nothing = {"offset": -1, "timestamp": -1, "leader_epoch": -1}
    process.set_each_response("list_offsets", lambda to, *args: nothing)
    (found,) = ask(process, 5, (0, 1000))
    assert (found.error_code, found.offset, found.leader_epoch) == (0, -1, -1)


def test_list_offsets_record_that_the_client_may_not_see_is_not_found(
    process: NetworkProcess,
) -> None:
    answer = {"offset": 15, "timestamp": 1001, "leader_epoch": 0}
    process.set_each_response("list_offsets", lambda to, *args: answer)
    assert ask(process, 5, (0, 1000))[0].offset == 15
    hidden = ask(process, 5, (0, 1000), isolation_level=1)[0]
    assert (hidden.offset, hidden.timestamp) == (-1, -1)


@pytest.mark.parametrize(
    ("timestamp", "first_version"),
    [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (PENDING_UPLOAD, 11)],
)
def test_list_offsets_special_timestamps_exist_from_their_version_on(
    process: NetworkProcess, timestamp: int, first_version: int
) -> None:
    answer = {"offset": 9, "timestamp": 5000, "leader_epoch": 0}
    process.set_each_response("list_offsets", lambda to, *args: answer)
    (rejected,) = ask(process, first_version - 1, (0, timestamp))
    assert rejected.error_code == ErrorCode.UNSUPPORTED_VERSION
    (served,) = ask(process, first_version, (0, timestamp))
    assert served.error_code == 0
    expected = {MAX_TIMESTAMP: 9, EARLIEST_LOCAL: 5, LATEST_TIERED: -1, PENDING_UPLOAD: -1}
    assert served.offset == expected[timestamp]


def test_list_offsets_unknown_special_timestamp_is_unsupported(process: NetworkProcess) -> None:
    assert ask(process, 11, (0, -7))[0].error_code == ErrorCode.UNSUPPORTED_VERSION


def test_list_offsets_earliest_of_a_log_with_epochs_asks_the_owner(
    process: NetworkProcess,
) -> None:
    process.add_topic("t", b"t" * 16, [3], leader_epoch=4)
    process.put_log(3, 5, 20, epochs=(4, 6, 2))
    answer = {"offset": 5, "timestamp": -1, "leader_epoch": 2}
    process.set_each_response("list_offsets", lambda to, *args: answer)
    assert ask(process, 8, (0, EARLIEST_LOCAL))[0].leader_epoch == 2
    assert process.asked("list_offsets") == [(3, EARLIEST, 0)]


def test_list_offsets_earliest_of_a_log_with_one_epoch_needs_no_call(
    process: NetworkProcess,
) -> None:
    process.add_topic("t", b"t" * 16, [3], leader_epoch=4)
    process.put_log(3, 5, 20, epochs=(4, 5, -1))
    found = ask(process, 8, (0, EARLIEST_LOCAL))[0]
    assert (found.offset, found.leader_epoch) == (5, 4)
    assert process.rpc.calls == []


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(3, ErrorCode.FENCED_LEADER_EPOCH), (4, 0), (5, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, 0)],
)
def test_list_offsets_leader_epoch_is_fenced(
    process: NetworkProcess, epoch: int, code: int
) -> None:
    process.add_topic("t", b"t" * 16, [3], leader_epoch=4)
    assert ask(process, 4, (0, LATEST), epoch=epoch)[0].error_code == code


@pytest.mark.parametrize("timestamp", [LATEST, EARLIEST, 1000])
@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (3, ErrorCode.FENCED_LEADER_EPOCH),
        (4, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (5, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_list_offsets_at_a_follower_compares_epochs_and_sends_to_the_leader(
    process: NetworkProcess, timestamp: int, epoch: int, code: int
) -> None:
    """As Kafka: consumers read records from followers, and ask leaders for offsets."""
    process.add_topic("t", b"t" * 16, [3], leader=1, leader_epoch=4)

    assert ask(process, 4, (0, timestamp), epoch=epoch)[0].error_code == code
    assert process.rpc.calls == []


def test_list_offsets_unknown_partitions_and_repeated_ones_fail_alone(
    process: NetworkProcess,
) -> None:
    codes = [
        p.error_code for p in ask(process, 4, (2, LATEST), (1, LATEST), (1, LATEST), (-1, LATEST))
    ]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [unknown, 0, ErrorCode.INVALID_REQUEST, unknown]
    assert ask(process, 4, (0, LATEST), topic="no")[0].error_code == unknown


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (OFFLINE, ErrorCode.KAFKA_STORAGE_ERROR),
        (LOADING, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (CLOSED, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_list_offsets_slot_that_is_not_online_says_why(
    process: NetworkProcess, state: int, code: int
) -> None:
    process.table.set_state(3, state)
    assert ask(process, 4, (0, LATEST))[0].error_code == code


def test_list_offsets_slot_of_another_replica_is_not_read(process: NetworkProcess) -> None:
    process.table.reset(3, state=1, slot_incarnation=2)
    assert ask(process, 4, (0, LATEST))[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_list_offsets_partition_led_elsewhere_is_not_leader(process: NetworkProcess) -> None:
    process.add_topic("far", b"f" * 16, [-1], leader=1)
    code = ask(process, 4, (0, LATEST), topic="far")[0].error_code
    assert code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_list_offsets_owner_restarting_is_a_retriable_error(process: NetworkProcess) -> None:
    def restarting(to: Any, **args: Any) -> Any:
        raise WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    process.set_response("list_offsets", restarting)
    failed, served = ask(process, 4, (0, 1000), (1, LATEST))
    assert failed.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert served.error_code == 0


@pytest.mark.parametrize(
    ("timestamp", "maximum", "offsets", "asks"),
    [
        (LATEST, 1, [20], False),
        (LATEST, 2, [20, 9], True),
        (LATEST, 0, [], False),
        (LATEST, -1, [], False),
        (EARLIEST, 5, [5], False),
        (1000, 5, [20, 9, 7, 5], True),
        (1000, 1, [20], True),
        (1000, -2, [], True),
    ],
)
def test_list_offsets_version_0_lists_offsets_before_a_time(
    process: NetworkProcess, timestamp: int, maximum: int, offsets: list[int], asks: bool
) -> None:
    process.set_each_response("offsets_before", lambda to, *args: {"offsets": [20, 9, 7, 5]})
    (listed,) = ask(process, 0, (0, timestamp), max_num_offsets=maximum)
    assert (listed.error_code, listed.old_style_offsets) == (0, offsets)
    asked = [(3, timestamp, 20)] if asks else []
    assert process.asked("offsets_before") == asked


def test_list_offsets_of_many_partitions_is_few_calls(process: NetworkProcess) -> None:
    """A call for each would cost both ends more than the results."""
    slots = [slot % 4 for slot in range(450)]
    process.add_topic("many", b"m" * 16, slots)
    for slot in set(slots):
        process.put_log(slot, 0, 1000)

    def answer(to: Address, slot: int, timestamp: int, isolation: int) -> Any:
        if timestamp == 77:
            raise WireError(ErrorCode.KAFKA_STORAGE_ERROR)
        return {"offset": timestamp, "timestamp": timestamp, "leader_epoch": slot}

    process.set_each_response("list_offsets", answer)

    found = ask(process, 5, *[(n, n) for n in range(450)], topic="many", isolation_level=1)

    assert [p.error_code for p in found if p.error_code] == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert found[77].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert all(p.offset == n and p.leader_epoch == n % 4 for n, p in enumerate(found) if n != 77)
    sizes = [len(args["asked"]) for _, _, _, args in process.rpc.calls]
    assert sizes == [100, 100, 25] * IO_WORKERS
    assert all(
        slot % IO_WORKERS == to.index
        for to, _, _, args in process.rpc.calls
        for slot, *_ in args["asked"]
    )


# ---- a new leader whose high watermark has not reached its epoch --------------------------------


@pytest.fixture
def new_leader(process: NetworkProcess) -> NetworkProcess:
    """A leader since epoch 3, which begins at offset 20; its followers are known up to 14."""
    process.put_log(3, 5, 20, epochs=(3, 20, 1))
    process.table.set_role(3, LEADER, 3, 0)
    process.table.publish(3, log_start_offset=5, log_end=(20, 0, 0), high_watermark=(14, 0, 0))
    return process


@pytest.mark.parametrize(("version", "code"), [(1, 5), (4, 5), (5, 78), (11, 78)])
@pytest.mark.parametrize("isolation", [0, 1])
def test_list_offsets_latest_is_not_available_before_the_epoch_is_reached(
    new_leader: NetworkProcess, version: int, code: int, isolation: int
) -> None:
    """The previous leader may have returned more than this one knows to be committed."""
    (found,) = ask(
        new_leader, version, (0, LATEST), isolation_level=isolation if version > 1 else 0
    )

    assert (found.error_code, found.offset) == (code, -1)


@pytest.mark.parametrize("replica_id", [1, -2])
def test_list_offsets_of_followers_and_debuggers_do_not_wait(
    new_leader: NetworkProcess, replica_id: int
) -> None:
    (found,) = ask(new_leader, 5, (0, LATEST), replica_id=replica_id)

    assert (found.error_code, found.offset) == (0, 20)


def test_list_offsets_earliest_is_known_at_once(new_leader: NetworkProcess) -> None:
    new_leader.set_each_response(
        "list_offsets", lambda to, *args: {"offset": 5, "timestamp": -1, "leader_epoch": 1}
    )
    assert ask(new_leader, 5, (0, EARLIEST))[0].offset == 5


@pytest.mark.parametrize(
    ("offset", "code"),
    [(13, 0), (14, 78), (19, 78), (-1, 78)],
    ids=["below", "at", "above", "none"],
)
def test_list_offsets_by_timestamp_waits_for_what_may_be_there(
    new_leader: NetworkProcess, offset: int, code: int
) -> None:
    answer = {"offset": offset, "timestamp": 1001, "leader_epoch": 1}
    new_leader.set_each_response("list_offsets", lambda to, *args: answer)

    (found,) = ask(new_leader, 5, (0, 1000))

    assert (found.error_code, found.offset) == (code, offset if code == 0 else -1)


def test_list_offsets_latest_is_there_once_the_epoch_is_reached(
    new_leader: NetworkProcess,
) -> None:
    new_leader.table.publish(3, log_start_offset=5, log_end=(22, 0, 0), high_watermark=(20, 0, 0))

    (found,) = ask(new_leader, 5, (0, LATEST))

    assert (found.error_code, found.offset, found.leader_epoch) == (0, 20, 3)
