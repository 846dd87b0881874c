"""``kafka-consumer-groups``: list, describe, delete and reset consumer groups."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kbroker.cli.kafka.options import Given, ToolOptionError, WrongUse, flag, valued
from kbroker.cli.kafka.running import BOOTSTRAP, Tool, connected

if TYPE_CHECKING:
    from kbroker.client.admin.groups import ListedGroup
    from kbroker.client.batches.offsets import TopicPartition
    from kbroker.client.connections.cluster import Cluster
    from kbroker.client.errors import ClientError

_ACTIONS = ("list", "describe", "delete", "reset-offsets", "delete-offsets", "validate-regex")
_SCENARIOS = (
    "to-offset",
    "shift-by",
    "to-datetime",
    "by-duration",
    "to-earliest",
    "to-latest",
    "to-current",
    "from-file",
)
_STATES = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
    "Empty",
    "Assigning",
    "Reconciling",
)
_TYPES = ("Classic", "Consumer")

OPTIONS = (
    BOOTSTRAP,
    valued("group", "consumer group", "A group; may be repeated."),
    valued(
        "topic",
        "topic",
        "A topic, or topic:0,1,2 for partitions of it, whose offsets are reset or deleted; may be "
        "repeated.",
    ),
    flag("all-topics", "With --reset-offsets, all partitions that the group has offsets of."),
    flag("list", "Print all groups."),
    flag("describe", "Print how far groups are, or with --members or --state what they are."),
    flag("all-groups", "All groups."),
    flag("delete", "Delete groups with their offsets."),
    valued(
        "timeout",
        "timeout (ms)",
        "How long to wait for the brokers.",
        kind=int,
        long=True,
        default="30000",
    ),
    valued("command-config", "command config property file", "A file with settings of a client."),
    flag(
        "reset-offsets",
        "Let groups without members go on from other offsets: --to-datetime, --by-duration, "
        "--to-earliest, --to-latest, --shift-by, --from-file, --to-current or --to-offset; of "
        "--all-topics or --topic.",
    ),
    flag("delete-offsets", "Delete the offsets of a group in --topic."),
    flag("dry-run", "With --reset-offsets, only print what would be."),
    flag("execute", "With --reset-offsets, do it."),
    flag("export", "With --reset-offsets, print CSV."),
    valued("to-offset", "offset", "Reset to this offset.", kind=int, long=True),
    valued("from-file", "path to CSV file", "Reset to the offsets in a file of --export."),
    valued(
        "to-datetime", "datetime", "Reset to the first record at a time, YYYY-MM-DDThh:mm:ss.sss."
    ),
    valued("by-duration", "duration", "Reset to a time before now, PnDTnHnMnS."),
    flag("to-earliest", "Reset to the first record."),
    flag("to-latest", "Reset to the end."),
    flag("to-current", "Reset to the present offset, or to the end if there is none."),
    valued(
        "shift-by",
        "number-of-offsets",
        "Reset by so many records, negative ones back.",
        kind=int,
        long=True,
    ),
    flag("members", "Describe the members.", needs=("describe",)),
    flag("verbose", "Describe more.", needs=("describe",)),
    flag("offsets", "Describe how far the group is.", needs=("describe",)),
    valued(
        "state",
        "",
        "With --describe, the state of groups; with --list also their states, and only groups in "
        "those that are given.",
        optional=True,
        needs=("describe", "list"),
    ),
    valued(
        "type",
        "",
        "With --list, also the types of groups, and only groups of those that are given.",
        optional=True,
        needs=("list",),
    ),
    valued("validate-regex", "regex", "Say whether brokers accept a regular expression (RE2)."),
)


def _check(given: Given) -> None:
    if "validate-regex" not in given:
        given.require("bootstrap-server")
    if "describe" in given:
        _needs_groups(given, "describe")
        if given.count(("members", "offsets", "state")) > 1:
            raise WrongUse(
                "Option [describe] takes at most one of these options: [members], [offsets], "
                "[state]"
            )
        if given.one("state") is not None:
            raise WrongUse("Option [describe] does not take a value for [state]")
    if "delete" in given:
        _needs_groups(given, "delete")
        if "topic" in given:
            raise WrongUse(
                "The consumer does not support topic-specific offset deletion from a consumer "
                "group."
            )
    if "delete-offsets" in given and given.count(("group", "topic")) < 2:
        raise WrongUse("Option [delete-offsets] takes the following options: [group], [topic]")
    if "reset-offsets" in given:
        _check_reset(given)
    given.exclude("group", ("all-groups", "list"))
    given.exclude("topic", ("list", "describe"))


def _check_reset(given: Given) -> None:
    if given.count(("dry-run", "execute")) == 2:
        raise WrongUse("Option [reset-offsets] only accepts one of [execute] and [dry-run]")
    if not given.count(("dry-run", "execute")):
        print(
            "WARN: No action will be performed as the --execute option is missing. In version 5.0, "
            "this command will require either --dry-run or --execute to be specified. You should "
            "add the --dry-run option explicitly if you are scripting this command and want to "
            "keep the current default behavior without prompting.",
            file=sys.stderr,
        )
    _needs_groups(given, "reset-offsets")
    for name in _SCENARIOS:
        given.exclude(name, [other for other in _SCENARIOS if other != name])


def _needs_groups(given: Given, name: str) -> None:
    if not given.count(("group", "all-groups")):
        raise WrongUse(f"Option [{name}] takes one of these options: [group], [all-groups]")


def _run(given: Given) -> int:
    _check(given)
    if given.count(_ACTIONS) != 1:
        listed = ", ".join(f"--{name}" for name in _ACTIONS)
        raise WrongUse(f"Command must include exactly one action: {listed}")
    action = next(name for name in _ACTIONS if name in given)
    if action == "validate-regex":
        _validate_regex(given.one("validate-regex"))
        return 0
    _run_connected(given, action)
    return 0


def _run_connected(given: Given, action: str) -> None:
    """What fails at the brokers is said on stdout, and is no error for the exit code: Kafka's tool
    does so.
    """
    from kbroker.cli.kafka.java_words import java_text
    from kbroker.client.errors import ClientError

    try:
        timeout_ms = given.one("timeout")
        bootstrap, config = given.one("bootstrap-server"), given.one("command-config")
        with connected(bootstrap, config, deadline_ms=timeout_ms) as cluster:
            _RUNS[action](given, cluster)
    except ClientError as error:
        print_error(f"Executing consumer group command failed due to {java_text(error)}")
    except (GroupsToolError, ToolOptionError) as error:
        print_error(f"Executing consumer group command failed due to {error}")


class GroupsToolError(Exception):
    """An error of its own, with the message of Kafka's."""


def print_error(text: str) -> None:
    print(f"\nError: {text}")


def _validate_regex(text: str) -> None:
    import re2

    try:
        re2.compile(text)
    except re2.error as error:
        why = error.args[0]
        why = why.decode() if isinstance(why, bytes) else why
        print(f"The regular expression `{text}` is invalid: {why}.")
    else:
        print(f"The regular expression `{text}` is valid.")


# -- list


def listed_groups(cluster: Cluster) -> list[ListedGroup]:
    """Those of consumers, in Java's order."""
    from kbroker.cli.kafka.java_words import hash_order, string_hash
    from kbroker.client.admin.groups import list_groups

    known = {
        row.group: row
        for row in list_groups(cluster)
        if row.protocol in ("", "consumer") and row.kind.lower() in ("", "classic", "consumer")
    }
    return [known[name] for name in hash_order(known, string_hash)]


def groups_of(given: Given, cluster: Cluster) -> list[str]:
    """Those that are meant."""
    if "all-groups" in given:
        return [row.group for row in listed_groups(cluster)]
    return list(dict.fromkeys(given.all("group")))


def _words(kind: str, known: Iterable[str], text: str | None) -> set[str]:
    """Of a list with commas, as they are written in ``known``. Raises WrongUse."""
    if not text:
        return set()
    words = set()
    for part in text.split(","):
        word = next((each for each in known if each.lower() == part.strip().lower()), None)
        if word is None:
            raise WrongUse(
                f"Invalid {kind} list '{text}'. Valid {kind.removesuffix('s')}s are: "
                f"{', '.join(known)}"
            )
        words.add(word)
    return words


def _list(given: Given, cluster: Cluster) -> None:
    groups = listed_groups(cluster)
    if not given.count(("type", "state")):
        for row in groups:
            print(row.group)
        return
    types = _words("types", _TYPES, given.one("type"))
    states = _words("state", _STATES, given.one("state"))
    rows = [
        (row.group, row.kind.capitalize() or "Unknown", row.state or "Unknown")
        for row in groups
        if (not states or row.state in states) and (not types or row.kind.capitalize() in types)
    ]
    width = max([15, *(len(row[0]) for row in rows)]) + 10
    for name, kind, state in [("GROUP", "TYPE", "STATE"), *rows]:
        line = f"{name:<{width}}"
        line += f" {kind:<20}" if "type" in given else ""
        line += f" {state:<20}" if "state" in given else ""
        print(line)


# -- delete


def _delete(given: Given, cluster: Cluster) -> None:
    from kbroker.cli.kafka.java_words import hash_order, java_text, string_hash
    from kbroker.client.admin.groups import delete_groups

    results = delete_groups(cluster, groups_of(given, cluster))
    failed = [name for name, error in results.items() if error is not None]
    done = [name for name, error in results.items() if error is None]
    said = ", ".join(f"'{name}'" for name in hash_order(done, string_hash))
    if not failed:
        print(f"Deletion of requested consumer groups ({said}) was successful.")
        return
    print_error("Deletion of some consumer groups failed:")
    for name in hash_order(failed, string_hash):
        error = results[name]
        assert error is not None
        print(f"* Group '{name}' could not be deleted due to: {java_text(error)}")
    if done:
        print(f"\nThese consumer groups were deleted successfully: {said}")


_PARTITION_LEVEL = {"GROUP_SUBSCRIBED_TO_TOPIC", "TOPIC_AUTHORIZATION_FAILED"}
_PARTITION_LEVEL |= {"UNKNOWN_TOPIC_OR_PARTITION"}
_GROUP_LEVEL = {"INVALID_GROUP_ID", "GROUP_ID_NOT_FOUND", "GROUP_AUTHORIZATION_FAILED"}
_GROUP_LEVEL |= {"NON_EMPTY_GROUP"}


def _delete_offsets(given: Given, cluster: Cluster) -> None:
    from kbroker.cli.kafka.java_words import code_message, java_text

    group = given.one("group")
    missing, partitions = _partitions_to_delete(given, cluster)
    results, worst = _deleted_each(cluster, group, partitions)
    if worst is None:
        print(f"Request succeeded for deleting offsets from group {group}.")
    elif worst.name in _GROUP_LEVEL:
        assert worst.code is not None
        print_error(code_message(worst.code))
    elif worst.name in _PARTITION_LEVEL:
        print_error("Encountered some partition-level error, see the follow-up details.")
    else:
        print_error(f"Encountered some unknown error: {worst.name}")
    rows: dict[TopicPartition, ClientError | None] = {**missing, **results}
    width = max([15, *(len(topic) for topic, _ in rows)])
    print(f"\n{'TOPIC':<{width}} {'PARTITION':<10} {'STATUS':<15}", end="")
    for topic, number in sorted(rows, key=lambda key: f"{key[0]}{key[1]}"):
        error = rows[topic, number]
        said = "Successful" if error is None else f"Error: {java_text(error)}"
        shown = str(number) if number >= 0 else "-"
        print(f"\n{topic:<{width}} {shown:<10} {said:<15}", end="")
    print()


def _partitions_to_delete(
    given: Given, cluster: Cluster
) -> tuple[dict[TopicPartition, ClientError | None], list[TopicPartition]]:
    """Errors of topics that do not exist, and the partitions that are meant."""
    from kbroker.cli.kafka.offset_reset import partitions_in
    from kbroker.client.errors import RejectedError
    from kbroker.errors import ErrorCode

    partitions: list[TopicPartition] = []
    missing: dict[TopicPartition, ClientError | None] = {}
    texts = list(dict.fromkeys(given.all("topic")))
    known = cluster.topics([text for text in texts if ":" not in text])
    for text in texts:
        if ":" in text:
            partitions += partitions_in(text)
        elif text in known:
            partitions += [(text, number) for number in known[text].partitions]
        else:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            missing[text, -1] = RejectedError(code, f"topic {text}")
    return missing, partitions


def _deleted_each(
    cluster: Cluster, group: str, partitions: list[TopicPartition]
) -> tuple[dict[TopicPartition, ClientError | None], ClientError | None]:
    """The error of each partition, and the one to report."""
    from kbroker.client.admin.groups import delete_offsets_each
    from kbroker.client.errors import RejectedError

    try:
        results = delete_offsets_each(cluster, group, partitions)
    except RejectedError as error:
        return dict.fromkeys(partitions, error), error
    return results, next((each for each in results.values() if each is not None), None)


def _describe(given: Given, cluster: Cluster) -> None:
    from kbroker.cli.kafka.group_tables import describe

    describe(given, cluster, groups_of(given, cluster))


def _reset(given: Given, cluster: Cluster) -> None:
    from kbroker.cli.kafka.offset_reset import reset

    reset(given, cluster, groups_of(given, cluster))


_RUNS: dict[str, Callable[[Given, Cluster], None]] = {
    "list": _list,
    "describe": _describe,
    "delete": _delete,
    "delete-offsets": _delete_offsets,
    "reset-offsets": _reset,
}

TOOL = Tool(
    "This tool helps to list all consumer groups, describe a consumer group, delete consumer group "
    "info, or reset consumer group offsets.",
    OPTIONS,
    _run,
)
