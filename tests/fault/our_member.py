"""A member of a group of kbroker's own consumer, as a process that may be killed.

    our_member.py BOOTSTRAP GROUP PROTOCOL ASSIGNOR FILE

Each line of FILE is a record: partition, offset, value. It commits what it has written there.
"""

from __future__ import annotations

import sys
from typing import Any

from support.faults.load import TOPIC

from kbroker.client import KafkaConsumer
from kbroker.client.errors import ClientError


def main(bootstrap: str, group: str, protocol: str, assignor: str, path: str) -> None:
    """Runs until it is killed, or its stdin is closed."""
    settings: dict[str, Any] = {"group_protocol": protocol, "max_poll_records": 50}
    if protocol == "classic":
        settings["partition_assignment_strategy"] = assignor
        settings["session_timeout_ms"] = 6000
        settings["heartbeat_interval_ms"] = 300
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        default_api_timeout_ms=20_000,
        **settings,
    )
    consumer.subscribe([TOPIC])
    with open(path, "w", encoding="utf-8") as out:
        while True:
            try:
                records = consumer.poll(0.2)
                for record in records:
                    out.write(f"{record.partition} {record.offset} {record.value.decode()}\n")
                out.flush()
                if records:
                    consumer.commit_sync()
            except ClientError as error:
                # What was read is read again, here or by another member.
                print(f"{type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
