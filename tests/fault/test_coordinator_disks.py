"""Coordinators on a full disk, and on a failing one."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault.disks import MIB, failing_disk, fill_up, small_disk
from support.brokers.all_processes import all_pids
from support.clients.coordinator_client import AWAY, Client, Writer, code_in, response_to_join

from kbroker.coordinator.partitioner import coordinator_partition
from kbroker.protocol.messages.end_txn import EndTxnRequest
from kbroker.protocol.messages.list_groups import ListGroupsRequest
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 100,
    "log.flush.interval.ms": 100,
    "log.index.size.max.bytes": 20_000,
}


def test_full_disk_rejects_what_must_be_written_and_heals(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", 24 * MIB) as disk,
        Broker(SETTINGS, log_dirs=disk / "data") as broker,
    ):
        client = Client(broker)
        client.wire.create_topic("t")
        assert client.commit(1) == 0
        writer = Writer(client, "tx")
        writer.commit_offset(5, "other")
        filler = fill_up(disk)
        pids = all_pids(broker)

        rejected = wait_until(lambda: client.commit_once(2, metadata="m" * 4000), 20, "it is full")
        assert rejected in AWAY, rejected
        client.wire.call(EndTxnRequest(transactional_id="tx", committed=True, **writer.producer), 2)
        assert client.fetch()[1] == 0
        assert broker.pids == pids, broker.log_text[-2000:]

        filler.unlink()
        assert wait_until(lambda: client.commit_once(3) == 0, 10, "it heals")
        assert client.fetch() == (3, 0)
        assert writer.end(True) == 0
        wait_until(lambda: client.fetch("other") == (5, 0), 10, "the transaction ends")
        client.join()
        assert response_to_join(client).error_code == 0
        assert broker.pids == pids
        client.wire.close()


def test_failed_disk_ends_its_coordinators_once(tmp_path: Path) -> None:
    # One io worker, which divides its partitions evenly.
    settings = {**SETTINGS, "offsets.topic.num.partitions": 2, "num.io.threads": 1}
    with failing_disk(tmp_path / "bad") as disk:
        bad_dir = disk.path / "data"
        with Broker(settings, log_dirs=f"{tmp_path / 'good'},{bad_dir}") as broker:
            client, waiting = Client(broker), Client(broker)
            client.wire.create_topic("t")
            client.wire.await_open("__consumer_offsets", range(2))
            bad = {n for n in range(2) if (bad_dir / f"__consumer_offsets-{n}").is_dir()}
            assert len(bad) == 1
            lost, lost_too, kept, _ = sorted(
                "abcd", key=lambda group: coordinator_partition(group, 2) not in bad
            )
            assert client.commit(1, lost) == client.commit(1, kept) == 0
            waiting.join(group=lost_too)
            pids = all_pids(broker)

            disk.fail()
            rejected = wait_until(lambda: client.commit_once(2, lost), 10, "the disk is noticed")

            assert rejected in AWAY
            assert code_in(client.wire.call(client.fetch_request(lost), 7)) in AWAY
            assert client.commit(3, kept) == 0 and client.fetch(kept) == (3, 0)
            listed = client.wire.call(ListGroupsRequest(), 4)
            assert (listed.error_code, [g.group_id for g in listed.groups]) == (0, [kept])
            assert response_to_join(waiting).error_code in {0, *AWAY}
            assert broker.pids == pids
            assert broker.log_text.count("stays offline until a restart") == 1
            assert "reloading" not in broker.log_text
            waiting.wire.close()
            client.wire.close()
