"""``kafka-delete-records``: delete the records below an offset of partitions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kbroker.cli.kafka.options import Given, valued
from kbroker.cli.kafka.running import BOOTSTRAP, Tool, ToolFailed, connected

if TYPE_CHECKING:
    from kbroker.client.batches.offsets import TopicPartition

OPTIONS = (
    BOOTSTRAP._replace(argument="server(s) to use for bootstrapping"),
    valued(
        "offset-json-file",
        "Offset json file path",
        'A file with an offset for each partition, as\n{"partitions":\n  [{"topic": "foo", '
        '"partition": 1, "offset": 1}],\n "version":1\n}; required.',
    ),
    valued(
        "command-config", "command config property file path", "A file with settings of a client."
    ),
)


def _run(given: Given) -> int:
    from kbroker.cli.kafka.java_words import hash_order, java_text, partition_hash

    given.require("bootstrap-server", "offset-json-file")
    bootstrap, config = given.one("bootstrap-server"), given.one("command-config")
    offsets = _offsets(given.one("offset-json-file"))
    with connected(bootstrap, config) as cluster:
        from kbroker.client.admin.partitions import delete_records
        from kbroker.client.errors import ClientError

        print("Executing records delete operation")
        results = delete_records(cluster, offsets)
    print("Records delete operation completed:")
    for key in hash_order(offsets, partition_hash):
        result = results[key]
        said = (
            f"error: {java_text(result)}"
            if isinstance(result, ClientError)
            else f"low_watermark: {result}"
        )
        print(f"partition: {key[0]}-{key[1]}\t{said}")
    return 0


def _offsets(path: str) -> dict[TopicPartition, int]:
    """Of a file; each partition once. Raises ToolFailed."""
    try:
        with open(path, encoding="utf-8") as file:
            document: Any = json.load(file)
    except OSError as error:
        raise ToolFailed(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ToolFailed("The input string is not a valid JSON") from error
    offsets: dict[TopicPartition, int] = {}
    twice = []
    try:
        version = document.get("version", 1)
        if version != 1:
            raise ToolFailed(f"Not supported version field value {version}")
        if "partitions" not in document:
            raise ToolFailed("Missing partitions field")
        for row in document["partitions"]:
            key = (str(row["topic"]), int(row["partition"]))
            if key in offsets:
                twice.append(f"{key[0]}-{key[1]}")
            offsets[key] = int(row["offset"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ToolFailed(
            f"{path}: expected topic, partition and offset of each: {error!r}"
        ) from error
    if twice:
        listed = ",".join(dict.fromkeys(twice))
        raise ToolFailed(f"Offset json file contains duplicate topic partitions: {listed}")
    return offsets


TOOL = Tool(
    "This tool helps to delete records of the given partitions down to the specified offset.",
    OPTIONS,
    _run,
)
