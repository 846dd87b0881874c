"""Names that look like paths, control sequences or log lines (exam S7)."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.clients.wire_client import WireClient, batch_of
from support.faults.hostile_harness import MIB, GoodClient, nothing_dies
from support.network.frames import request_frame
from support.running.grids import some_of

from kbroker.config.key import UNKNOWN
from kbroker.errors import ErrorCode
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey, response_class
from kbroker.protocol.message import Message
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.create_topics import CreateTopicsRequest
from kbroker.protocol.messages.delete_topics import DeleteTopicsRequest
from kbroker.protocol.messages.describe_configs import DescribeConfigsRequest
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from kbroker.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kbroker.protocol.messages.join_group import JoinGroupRequest
from kbroker.protocol.messages.leave_group import LeaveGroupRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequest
from kbroker.storage.segments.producer_snapshots import SPARE
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

OUTSIDE = "/tmp/kbroker-hostile-name"
FORGED = "2026-01-01 00:00:00.000 ERROR [supervisor] forged"
NAMES = [
    "",
    ".",
    "..",
    "../outside",
    "../../outside",
    "a/b",
    "/outside",
    "a\0b",
    "x" * 250,
    "naïve",
    "日本",
    "\u202eevil",
    "😀",
    "a b",
    f"a\r\n{FORGED}",
    f"a\n{FORGED}",
    f"a\x85{FORGED}",
    f"a\u2028{FORGED}",
    "%n%s%d",
    "\x1b[2Jclear",
    "a:b",
    "a\\b",
    "~",
    "$HOME",
]
LONGEST = "x" * 249
SET, DELETE = 0, 1  # operations of IncrementalAlterConfigs
SURROGATES = "~~~ of surrogates"
# Files that a broker always writes; and, in a flushed partition, SPARE.
CHECKPOINT = re.compile(
    r"((recovery-point|log-start|replication|cleaner)-offset-checkpoint|kbroker-metadata\.copy)"
    r"(\.tmp)?"
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        with WireClient((started.host, started.port)) as client:
            client.create_topic("good")
        yield started


@pytest.fixture
def client(broker: Broker) -> Iterator[WireClient]:
    with WireClient((broker.host, broker.port)) as connected:
        yield connected


def files_of(broker: Broker) -> set[str]:
    """Every path in the broker's directory and the entries beside it, except for those that come
    with time.
    """
    inside = {
        str(path)
        for path in broker.directory.rglob("*")
        if "run/" not in str(path)
        and not (path.parent == broker.data_dir and CHECKPOINT.fullmatch(path.name))
        and not (path.parent.parent == broker.data_dir and path.name == SPARE)
    }
    return inside | {str(path) for path in broker.directory.parent.glob("outside*")}


def assert_log_is_not_forged(broker: Broker) -> None:
    """Each line begins like the broker's or belongs to a stack dump, and none is forged."""
    raw = broker.log_path.read_bytes()
    text = raw.decode("utf-8")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\u2028\u2029\u202e]", text)
    for line in text.splitlines():
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} [A-Z]+ \[[a-z]+", line), line[:200]
        assert not line.startswith(FORGED)


def test_bad_topic_names_are_refused_everywhere_and_touch_no_file(
    broker: Broker, client: WireClient
) -> None:
    files = files_of(broker)
    with nothing_dies(broker):
        for name in NAMES:
            is_refused_everywhere(client, name)
            assert files_of(broker) == files, name
    assert_log_is_not_forged(broker)


def is_refused_everywhere(client: WireClient, name: str) -> None:
    create = CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        ],
        timeout_ms=30_000,
    )
    created = client.call(create, 5).topics[0]
    asked = client.call(  # which would create it
        MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)]), 9
    ).topics[0]
    produced = client.produce(name, {0: batch_of([b"x"])})[0]
    fetched = client.fetch(name, 0, 0)
    deleted = client.call(DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000), 4)

    assert created.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION, created
    assert asked.error_code in (
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ), asked
    assert produced.error_code != 0 and fetched.error_code != 0, name
    assert deleted.responses[0].error_code != 0, name


def test_longest_name_works(broker: Broker, client: WireClient) -> None:
    client.create_topic(LONGEST)

    assert client.produce(LONGEST, {0: batch_of([b"x"])})[0].error_code == 0
    assert [record.value for record in client.read_all(LONGEST, 0)] == [b"x"]
    assert (broker.data_dir / f"{LONGEST}-0").is_dir()


def test_client_ids_forge_no_log_line(broker: Broker) -> None:
    with nothing_dies(broker), GoodClient(broker, "good", least=1):
        for name in [*NAMES, "c" * 32767]:
            with WireClient((broker.host, broker.port), client_id=name) as client:
                client.call(ApiVersionsRequest(), 0)
                client.call(FindCoordinatorRequest(key=name), 2)
                client.metadata(name)
                # Makes the broker log the client: a request that it rejects.
                client.socket.sendall(b"\0\0\0\x0e\0\x03\0\x09\0\0\0\1\x7f\xff" + b"a\nb\n")
                assert client.is_closed(30), name

    assert_log_is_not_forged(broker)


@pytest.mark.parametrize("key", [0, 1, 3])
def test_refused_request_is_traced_to_its_application(broker: Broker, key: int) -> None:
    """The client id of the connection is in the log: an address alone may belong to many."""
    name = f"billing-{key}"
    with WireClient((broker.host, broker.port), client_id=name) as client:
        client.call(ApiVersionsRequest(), 0)
        client.socket.sendall(struct.pack(">ihhihb", 11, key, 99, 1, -1, 0))

        assert client.is_closed(30)

    wait_until(lambda: f"(client id '{name}'): " in broker.log_text, 30, "the line names it")


def test_client_of_another_encoding_commits_and_reads_its_metadata(
    broker: Broker, client: WireClient
) -> None:
    """Latin-1 in ids and metadata is accepted, as in Kafka; undecodable bytes become U+FFFD."""

    def call(request: Message, version: int) -> Any:
        assert request.API_KEY is not None
        frame = request_frame(request, version, 1, "caf~").replace(b"~", b"\xe9")
        client.socket.sendall(frame)
        response = client.receive()
        return codec.decode_exact(response_class(request.API_KEY), version, response, 4)

    fetch, commit = OffsetFetchRequest, OffsetCommitRequest
    part = commit.OffsetCommitRequestPartition(committed_offset=5, committed_metadata="~t~")
    asked = commit(
        group_id="th~",
        topics=[commit.OffsetCommitRequestTopic(name="good", partitions=[part])],
    )

    def committed() -> bool:
        return bool(call(asked, 2).topics[0].partitions[0].error_code == 0)

    call(FindCoordinatorRequest(key="th~"), 0)
    wait_until(committed, 30, "the offset is committed")
    topic = fetch.OffsetFetchRequestTopic(name="good", partition_indexes=[0])
    found = call(fetch(group_id="th~", topics=[topic]), 1).topics[0].partitions[0]

    assert (found.committed_offset, found.metadata) == (5, "\ufffdt\ufffd")
    assert_log_is_not_forged(broker)


@pytest.mark.parametrize(
    "text",
    some_of(
        [f"g\r\n{FORGED}", "\x1b[2J\x9b\0", "\u202eevil\u2069\u061c", "x" * 20_000],
        [f"g\r\n{FORGED}", "x" * 20_000],
    ),
    ids=["line", "controls", "direction", "long"],
)
def test_ids_of_groups_and_members_reach_the_log_short_and_harmless(
    broker: Broker, client: WireClient, text: str
) -> None:
    """Group, member and instance ids, the protocol and the reason to leave are logged at each step
    of a group.
    """
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name=text[:1000], metadata=b"")
    join = JoinGroupRequest(
        group_id=text,
        group_instance_id=text,
        protocol_type="consumer",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocols=[protocol],
    )
    size = os.path.getsize(broker.log_path)
    client.call(FindCoordinatorRequest(key=text), 3)

    joined = wait_until(lambda: has_joined(client.call(join, 7)), 30, "the member joins")
    leaving = LeaveGroupRequest.MemberIdentity(
        member_id=joined.member_id, group_instance_id=text, reason=text
    )
    left = client.call(LeaveGroupRequest(group_id=text, members=[leaving]), 5)

    assert left.error_code == left.members[0].error_code == 0
    told = broker.log_path.read_bytes()[size:].decode()
    assert "leaves" in told
    assert all(len(line) < 2_500 and line.isprintable() for line in told.splitlines())
    assert_log_is_not_forged(broker)


def has_joined(response: Any) -> Any:
    """The response, unless its coordinator is being found or loaded."""
    return response if response.error_code == 0 else None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("log.dirs", OUTSIDE),
        ("log.dir", OUTSIDE),
        ("runtime.dir", OUTSIDE),
        ("listeners", f"PLAINTEXT://evil:1\n{FORGED}"),
        ("retention.ms\n", "1"),
        ("log.cleanup.policy", f"delete\n{FORGED}"),
        (f"x\n{FORGED}", "1"),
        ("", "1"),
        ("x\0", "1"),
        ("\u202eevil", "1"),
        ("x" * 32_767, "1"),
    ],
    ids=lambda text: ascii(text)[1:25],
)
def test_settings_reach_no_file_and_no_log(
    broker: Broker, client: WireClient, key: str, value: str
) -> None:
    cls = IncrementalAlterConfigsRequest
    files = files_of(broker)
    of_topic = key.removeprefix("log.") if key == "log.cleanup.policy" else key
    for kind, name, setting in ((4, "0", key), (2, "good", of_topic)):
        change = cls.AlterableConfig(name=setting, config_operation=SET, value=value)
        resource = cls.AlterConfigsResource(
            resource_type=kind, resource_name=name, configs=[change]
        )
        response = client.call(cls(resources=[resource]), 0).responses[0]
        assert response.error_code != 0, (kind, response)

    assert files_of(broker) == files
    assert not Path(OUTSIDE).exists()
    assert_log_is_not_forged(broker)


@pytest.mark.parametrize("name", ["0", ""], ids=["broker", "cluster-wide"])
def test_unknown_settings_are_kept_with_no_effect_and_small(
    broker: Broker, client: WireClient, name: str
) -> None:
    """Any printable name may be that of a plug-in of somebody's Kafka: stored, described, told in
    the log once, and bounded as a whole.
    """
    pairs = {
        "日本": f"v\n{FORGED}",
        "../../outside": "/outside",
        "%n%s%d": "\0\x1b[2Jclear",
        SURROGATES: "~~~",
        "😀" * 200: "😀" * 200,
    }
    pairs |= {f"{n} ".ljust(200, "x"): "v" for n in range(90)}
    files = files_of(broker)
    size = os.path.getsize(broker.log_path)
    with nothing_dies(broker), GoodClient(broker, "good", least=1):
        assert altered(client, name, pairs, SET).error_code == 0
        too_long = altered(client, name, {f"long{n}": "v" * 32_000 for n in range(3)}, SET)
        too_many = altered(client, name, {f"many{n}": "v" for n in range(6)}, SET)
        found = described(client, name)
        assert altered(client, name, dict.fromkeys(found, None), DELETE).error_code == 0
        left = described(client, name)

    assert (too_long.error_code, too_many.error_code) == (ErrorCode.INVALID_CONFIG,) * 2
    assert found == dict.fromkeys({*pairs, "\ufffd" * 3 + " of surrogates"} - {SURROGATES})
    assert left == {}
    assert files_of(broker) == files
    assert os.path.getsize(broker.log_path) - size < 20_000
    assert_log_is_not_forged(broker)


def altered(client: WireClient, name: str, pairs: Mapping[str, str | None], op: int) -> Any:
    """The result for a broker's settings; ~~~ is sent as half a surrogate pair."""
    cls = IncrementalAlterConfigsRequest
    changes = [
        cls.AlterableConfig(name=key, config_operation=op, value=value)
        for key, value in pairs.items()
    ]
    resource = cls.AlterConfigsResource(resource_type=4, resource_name=name, configs=changes)
    frame = request_frame(cls(resources=[resource]), 0, 1, "c")
    client.socket.sendall(frame.replace(b"~~~", b"\xed\xa0\x80"))
    api = response_class(ApiKey.INCREMENTAL_ALTER_CONFIGS)
    return codec.decode_exact(api, 0, client.receive(), 4).responses[0]


def described(client: WireClient, name: str) -> dict[str, str | None]:
    """The settings of a broker that nobody knows."""
    cls = DescribeConfigsRequest
    resource = cls.DescribeConfigsResource(
        resource_type=4, resource_name=name, configuration_keys=None
    )
    response = client.call(cls(resources=[resource]), 3).results[0]
    return {row.name: row.value for row in response.configs if row.config_type == UNKNOWN}


def test_topic_setting_of_a_megabyte_is_refused_or_kept_small(
    broker: Broker, client: WireClient
) -> None:
    cls = IncrementalAlterConfigsRequest
    change = cls.AlterableConfig(
        name="leader.replication.throttled.replicas", config_operation=0, value="9" * 32000
    )
    resource = cls.AlterConfigsResource(resource_type=2, resource_name="good", configs=[change])
    log_before = os.path.getsize(broker.log_path)
    with nothing_dies(broker, 16 * MIB):
        client.call(cls(resources=[resource]), 0)

    assert os.path.getsize(broker.log_path) - log_before < 5000
