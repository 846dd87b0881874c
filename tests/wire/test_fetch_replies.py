"""Every version of a Fetch reply, compared with what the general codec decodes."""

import pytest
from support.storage.fetch_log import FetchBench, follower_fields

pytestmark = pytest.mark.wire

VERSIONS = range(4, 19)


@pytest.mark.parametrize("version", VERSIONS)
def test_fetch_reply_with_records_decodes_in_every_version(tmp_path, version):
    bench = FetchBench(tmp_path)
    log = bench.log()
    log.append_many(20, size=300)
    log.start_at(2)
    log.hold_back(18, last_stable=15)

    response = bench.fetch({("t", 0): 5}, version)

    partition = bench.only(response)
    assert response.error_code == 0
    assert response.throttle_time_ms == 0
    assert partition.error_code == 0
    assert partition.high_watermark == 18
    assert partition.last_stable_offset == 15
    assert partition.log_start_offset == (2 if version >= 5 else -1)
    assert partition.aborted_transactions is None
    assert partition.preferred_read_replica == -1
    assert bytes(partition.records) == log.expected(5, log.high_watermark, 1 << 20, first=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_fetch_reply_of_several_topics_and_errors_decodes_in_every_version(tmp_path, version):
    bench = FetchBench(tmp_path)
    logs = bench.topic("a", 3)
    other = bench.log("b")
    logs[0].append_many(3)
    logs[2].append_many(4)
    other.append_many(5)

    wanted = {("a", 0): 0, ("a", 1): 0, ("a", 2): 9, ("nobody", 0): 0, ("b", 0): 4, ("b", 7): 0}
    response = bench.fetch(wanted, version)

    unknown = 100 if version >= 13 else 3
    found = bench.partitions(response)
    errors = [partition.error_code for partition in found.values()]
    assert errors == [0, 0, 1, unknown, 0, 3]
    assert [key[1] for key in found] == [0, 1, 2, 0, 0, 7]
    assert bytes(found["a", 0].records) == logs[0].expected(0, logs[0].end, 1 << 20, first=True)
    assert bytes(found["a", 1].records) == b""
    assert bytes(found["b", 0].records) == other.batches[4].data
    for key in (("a", 2), ("b", 7)):
        assert found[key].high_watermark == -1
        assert found[key].last_stable_offset == -1
        assert bytes(found[key].records) == b""


@pytest.mark.parametrize("version", VERSIONS)
def test_fetch_reply_read_committed_has_a_list_of_aborted_transactions(tmp_path, version):
    bench = FetchBench(tmp_path)
    log = bench.log()
    log.append_many(10)
    log.hold_back(10, last_stable=4)

    partition = bench.only(bench.fetch({("t", 0): 0}, version, isolation_level=1))

    assert partition.aborted_transactions == []
    assert partition.last_stable_offset == 4
    assert bytes(partition.records) == b"".join(batch.data for batch in log.batches[:4])


@pytest.mark.parametrize("version", VERSIONS)
def test_fetch_request_of_no_partition_completes_at_once(tmp_path, version):
    bench = FetchBench(tmp_path)

    response = bench.fetch({}, version, max_wait_ms=500)

    assert response.responses == []


@pytest.mark.parametrize("version", VERSIONS)
def test_fetch_by_a_follower_reads_up_to_the_log_end(tmp_path, version):
    bench = FetchBench(tmp_path)
    log = bench.log()
    log.append()
    log.hold_back(0)

    response = bench.fetch({("t", 0): 0}, version, **follower_fields(2, version))

    answer = bench.only(response)
    assert (answer.error_code, answer.high_watermark) == (0, 0)
    assert bytes(answer.records) == log.batches[0].data


@pytest.mark.parametrize("version", [v for v in VERSIONS if v >= 12])
def test_fetch_reply_to_a_diverging_follower_has_the_epoch_and_its_end(tmp_path, version):
    bench = FetchBench(tmp_path)
    log = bench.log(leader_epoch=5)
    log.append_many(3)
    bench.table.set_epochs(log.slot, 5, 2, 3)

    response = bench.fetch(
        {("t", 0): 3}, version, last_fetched_epoch=4, **follower_fields(2, version)
    )

    answer = bench.only(response)
    assert (answer.error_code, bytes(answer.records)) == (0, b"")
    assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (3, 2)


def test_fetch_reply_of_a_name_as_long_as_allowed_decodes(tmp_path):
    bench = FetchBench(tmp_path)

    response = bench.fetch({("x" * 32767, 0): 0}, 12)

    assert response.responses[0].topic == "x" * 32767
    assert response.responses[0].partitions[0].error_code == 3
