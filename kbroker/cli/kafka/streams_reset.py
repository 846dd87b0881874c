"""``kafka-streams-application-reset``: let an application of Kafka Streams begin anew."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kbroker.cli.kafka.options import Given, flag, valued
from kbroker.cli.kafka.running import BOOTSTRAP, Tool, ToolFailed, connected

if TYPE_CHECKING:
    from kbroker.client.batches.offsets import TopicPartition
    from kbroker.client.connections.cluster import Cluster

_DEFAULT = "localhost:9092"
_INTERNAL_ENDS = (
    "-changelog", "-repartition", "-subscription-registration-topic",
    "-subscription-response-topic",
)  # fmt: skip
_FOREIGN_KEY = re.compile(r".+-KTABLE-FK-JOIN-SUBSCRIPTION-(?:REGISTRATION|RESPONSE)-\d+-topic")
_WAYS = ("to-offset", "to-datetime", "by-duration", "to-earliest", "to-latest", "from-file",
         "shift-by")  # fmt: skip

OPTIONS = (
    valued("application-id", "id", "The application.id of the application.", required=True),
    BOOTSTRAP._replace(text=f"Brokers to connect to; {_DEFAULT} without it."),
    valued("bootstrap-servers", "urls", "The same, as before Kafka 3.4."),
    valued("input-topics", "list", "Topics that it reads, with commas: their offsets are reset, "
           "to the first one without another option.", separator=","),
    valued("intermediate-topics", "list", "Topics that it writes and reads, with commas: their "
           "offsets are set to the end.", separator=","),
    valued("internal-topics", "list", "The internal topics to delete, all without it.",
           separator=","),
    valued("to-offset", "", "Reset to this offset.", kind=int, long=True),
    valued("to-datetime", "", "Reset to a time, as 2026-11-27T08:00:00.000."),
    valued("by-duration", "", "Reset to this long ago, as PT1H30M."),
    flag("to-earliest", "Reset to the first offset."),
    flag("to-latest", "Reset to the end."),
    valued("from-file", "", "Reset to the offsets in a file with topic,partition,offset."),
    valued("shift-by", "number-of-offsets", "Reset by this number, which may be negative.",
           kind=int, long=True),
    valued("config-file", "file name", "The same as --command-config, before Kafka 4.2."),
    valued("command-config", "config-file", "A file with settings of a client."),
    flag("force", "Remove members that are still in the group."),
    flag("dry-run", "Print what would be done."),
)  # fmt: skip


def _run(given: Given) -> int:
    for name in _WAYS:
        given.exclude(name, [other for other in _WAYS if other != name])
    given.exclude("config-file", ("command-config",))
    if "config-file" in given:
        print(
            "Option --config-file has been deprecated and will be removed in a future version. Use "
            "--command-config instead."
        )
    config = given.one("config-file") or given.one("command-config")
    bootstrap = given.one("bootstrap-server") or given.one("bootstrap-servers") or _DEFAULT
    with connected(bootstrap, config) as cluster:
        group = given.one("application-id")
        _check_members(cluster, group, force="force" in given)
        known = {name for name, row in cluster.topics().items() if not row.internal}
        if "dry-run" in given:
            print(
                "----Dry run displays the actions which will be performed when running Streams "
                "Reset Tool----"
            )
        code = _reset_topics(given, cluster, group, known)
        _delete_internal(given, cluster, group, known)
    return code


def _check_members(cluster: Cluster, group: str, *, force: bool) -> None:
    """Raises ToolFailed if the application runs."""
    from kbroker.client.admin.groups import describe_group, remove_members
    from kbroker.client.errors import RejectedError
    from kbroker.errors import ErrorCode

    try:
        members = describe_group(cluster, group).members
    except RejectedError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return
    if members and force:
        print(f"Force deleting all active members in the group: {group}")
        remove_members(cluster, group, [row.member for row in members])
    elif members:
        listed = ", ".join(row.member for row in members)
        raise ToolFailed(
            f"ERROR: Consumer group '{group}' is still active and has following members: {listed}. "
            "Make sure to stop all running application instances before running the reset tool. "
            "You can use option '--force' to remove active members from the group."
        )


# -- topics that remain


def _reset_topics(given: Given, cluster: Cluster, group: str, known: set[str]) -> int:
    """The exit code."""
    inputs, between = given.all("input-topics"), given.all("intermediate-topics")
    if not inputs and not between:
        print("No input or intermediate topics specified. Skipping seek.")
        return 0
    if between:
        print("WARN: `--intermediate-topics` is deprecated and will be removed in a future release")
    if inputs:
        print(f"Reset-offsets for input topics [{', '.join(inputs)}]")
    if between:
        print(f"Seek-to-end for intermediate topics [{', '.join(between)}]")
    code = 0
    for names, kind, colon in ((inputs, "input", ": "), (between, "intermediate", ":")):
        missing = [name for name in names if name not in known]
        if missing:
            code = 1
            print(f"Following {kind} topics are not found, skipping them")
            for name in missing:
                print(f"Topic{colon}{name}")
    offsets = _of_inputs(given, cluster, group, [name for name in inputs if name in known])
    offsets |= _of_ends(cluster, group, [name for name in between if name in known])
    if not offsets:
        return code
    if "dry-run" not in given:
        from kbroker.client.batches.offsets import commit

        commit(cluster, group, {key: (offset, "") for key, offset in offsets.items()})
    print("Done.")
    return code


def _partitions(cluster: Cluster, names: Iterable[str]) -> list[TopicPartition]:
    from kbroker.cli.kafka.java_words import hash_order, partition_hash

    wanted = list(names)
    topics = cluster.topics(wanted) if wanted else {}
    keys = [(name, number) for name in wanted for number in topics[name].partitions]
    return hash_order(keys, partition_hash)


def _of_inputs(
    given: Given, cluster: Cluster, group: str, names: list[str]
) -> dict[TopicPartition, int]:
    keys = _partitions(cluster, names)
    if not keys:
        return {}
    print(f"Following input topics offsets will be reset to (for consumer group {group})")
    offsets = _planned(given, cluster, group, keys)
    for topic, number in keys:
        print(f"Topic: {topic} Partition: {number} Offset: {offsets[topic, number]}")
    return offsets


def _of_ends(cluster: Cluster, group: str, names: list[str]) -> dict[TopicPartition, int]:
    from kbroker.client.batches.offsets import LATEST

    keys = _partitions(cluster, names)
    if not keys:
        return {}
    print(
        f"Following intermediate topics offsets will be reset to end (for consumer group {group})"
    )
    for topic, _ in keys:
        print(f"Topic: {topic}")
    return _listed(cluster, keys, LATEST)


def _planned(
    given: Given, cluster: Cluster, group: str, keys: list[TopicPartition]
) -> dict[TopicPartition, int]:
    from kbroker.cli.kafka.consumer_groups import GroupsToolError
    from kbroker.cli.kafka.offset_reset import duration_ms, time_ms
    from kbroker.client.batches.offsets import EARLIEST, LATEST

    try:
        if "to-latest" in given:
            return _listed(cluster, keys, LATEST)
        if "to-datetime" in given:
            return _at(cluster, keys, time_ms(given.one("to-datetime")))
        if "by-duration" in given:
            ago = duration_ms(given.one("by-duration"))
            return _at(cluster, keys, time.time_ns() // 1_000_000 - ago)
    except GroupsToolError as error:
        raise ToolFailed(f"ERROR: {error}") from error
    if "to-offset" in given:
        return _within(cluster, dict.fromkeys(keys, given.one("to-offset")))
    if "shift-by" in given:
        return _within(cluster, _shifted(cluster, group, keys, given.one("shift-by")))
    if "from-file" in given:
        wanted = _of_file(given.one("from-file"))
        if missing := [key for key in keys if key not in wanted]:
            raise ToolFailed(f"ERROR: {given.one('from-file')} has no offset for {missing[0]}")
        return _within(cluster, {key: wanted[key] for key in keys})
    return _listed(cluster, keys, EARLIEST)


def _listed(cluster: Cluster, keys: list[TopicPartition], at: int) -> dict[TopicPartition, int]:
    from kbroker.client.batches.offsets import list_offsets

    return {key: row.offset for key, row in list_offsets(cluster, dict.fromkeys(keys, at)).items()}


def _at(cluster: Cluster, keys: list[TopicPartition], at_ms: int) -> dict[TopicPartition, int]:
    from kbroker.client.batches.offsets import LATEST

    offsets = _listed(cluster, keys, at_ms)
    later = [key for key in keys if offsets.get(key, -1) < 0]
    for topic, number in later:
        print(
            f"Partition {number} from topic {topic} is empty, without a committed record. Falling "
            "back to latest known offset."
        )
    return offsets | (_listed(cluster, later, LATEST) if later else {})


def _shifted(
    cluster: Cluster, group: str, keys: list[TopicPartition], by: int
) -> dict[TopicPartition, int]:
    from kbroker.client.batches.offsets import LATEST, committed

    now = {key: row.offset for key, row in committed(cluster, group, keys).items()}
    absent = [key for key in keys if key not in now]
    now |= _listed(cluster, absent, LATEST) if absent else {}
    return {key: now[key] + by for key in keys}


def _within(cluster: Cluster, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Those that there are."""
    from kbroker.client.batches.offsets import EARLIEST, LATEST

    keys = list(wanted)
    first, end = _listed(cluster, keys, EARLIEST), _listed(cluster, keys, LATEST)
    offsets = {}
    for key, offset in wanted.items():
        offsets[key] = offset
        if offset >= end[key]:
            offsets[key] = end[key]
            print(
                f"New offset ({offset}) is higher than latest offset. Value will be set to "
                f"{end[key]}"
            )
        elif offset <= first[key]:
            offsets[key] = first[key]
            print(
                f"New offset ({offset}) is lower than earliest offset. Value will be set to "
                f"{first[key]}"
            )
    return offsets


def _of_file(path: str) -> dict[TopicPartition, int]:
    """Raises ToolFailed."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.split(",") for line in file.read().split("\n") if line]
        return {(topic, int(number)): int(offset) for topic, number, offset in lines}
    except OSError as error:
        raise ToolFailed(f"ERROR: {path}: {error.strerror}") from error
    except ValueError as error:
        raise ToolFailed(
            "ERROR: Reset plan CSV file is not following the format `TOPIC,PARTITION,OFFSET`."
        ) from error


# -- topics that go


def is_internal(name: str, group: str) -> bool:
    """Whether Kafka Streams has created the topic for the application."""
    return name.startswith(f"{group}-") and (
        name.endswith(_INTERNAL_ENDS) or _FOREIGN_KEY.fullmatch(name) is not None
    )


def _delete_internal(given: Given, cluster: Cluster, group: str, known: set[str]) -> None:
    from kbroker.cli.kafka.java_words import hash_order, string_hash
    from kbroker.client.admin.topics import delete_topics

    inferred = hash_order((name for name in known if is_internal(name, group)), string_hash)
    wanted = given.all("internal-topics")
    if not set(wanted) <= set(inferred):
        raise ToolFailed(
            "ERROR: Invalid topic specified in the --internal-topics option. Ensure that the "
            "topics specified are all internal topics. Do a dry run without the --internal-topics "
            "option to see the list of all internal topics that can be deleted."
        )
    names = wanted or inferred
    which = "specified" if wanted else "inferred"
    print(f"Deleting {which} internal topics [{', '.join(names)}]")
    if "dry-run" not in given and names:
        for name, error in delete_topics(cluster, names).items():
            if error is not None:
                raise ToolFailed(f"ERROR: deleting topic {name}: {error}")
    print("Done.")


TOOL = Tool(
    "This tool helps to quickly reset an application in order to reprocess its data from scratch. "
    "Stop all its instances first, and delete their local state afterwards.",
    OPTIONS,
    _run,
    usage_errors=True,
)
