"""When retention, expiry and checkpoints are due, according to the configs."""

import os
from pathlib import Path

import pytest
from support.storage.log_store import BROKER_DEFAULTS, NOW_MS, LogStore, append, batch

from kbroker._ext.log.producer_state import ProducerState
from kbroker.storage.manager.schedule import INTERVAL_KEYS, RETENTION, Schedule

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("task", INTERVAL_KEYS)
def test_task_after_the_initial_delay_is_due_once_per_interval(task):
    config = {**BROKER_DEFAULTS, "log.initial.task.delay.ms": 50, INTERVAL_KEYS[task]: 200}
    schedule = Schedule(config, 1000)

    due = [now for now in range(1000, 1500, 10) if schedule.take(task, config, now)]

    assert due == [1050, 1250, 1450]


def test_interval_below_the_initial_delay_counts_for_the_first_run():
    config = {**BROKER_DEFAULTS, "log.retention.check.interval.ms": 20}
    schedule = Schedule(config, 0)

    assert not schedule.take(RETENTION, config, 19)
    assert schedule.take(RETENTION, config, 20)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("log.flush.offset.checkpoint.interval.ms", "recovery-point-offset-checkpoint"),
        ("log.flush.start.offset.checkpoint.interval.ms", "log-start-offset-checkpoint"),
        ("replica.high.watermark.checkpoint.interval.ms", "replication-offset-checkpoint"),
    ],
)
def test_checkpoint_is_written_by_its_own_interval(tmp_path, key, name):
    store = LogStore(tmp_path, **{key: 700})
    store.open()
    for _ in range(7):
        store.clock.advance(100)
        store.manager.tick()

    assert os.listdir(store.dirs[0]).count(name) == 1
    assert sum(n.endswith("checkpoint") for n in os.listdir(store.dirs[0])) == 1
    store.stop(clean=False)


def test_checkpoint_with_nothing_new_is_not_written_again(tmp_path):
    store = LogStore(tmp_path)
    log = store.open()
    store.manager.checkpoint()
    path = Path(store.dirs[0]) / "replication-offset-checkpoint"
    path.write_text("untouched")

    store.manager.checkpoint()
    assert path.read_text() == "untouched"

    append(log, batch())
    store.manager.checkpoint()
    assert path.read_text() == "0\n1\nt 0 1\n"
    store.stop(clean=False)


def test_silent_producer_is_forgotten_by_the_expiry_interval_alone(tmp_path):
    store = LogStore(
        tmp_path,
        **{"producer.id.expiration.ms": 1000, "producer.id.expiration.check.interval.ms": 2000},
    )
    log = store.open(**{"retention.ms": 1})
    append(log, batch(producer_id=7, producer_epoch=0, base_sequence=0))
    store.clock.advance(1900)
    store.manager.tick()
    assert len(log.appender.producers.to_snapshot()) > len(ProducerState(0).to_snapshot())

    store.clock.advance(100)
    store.manager.tick()
    assert len(log.appender.producers.to_snapshot()) == len(ProducerState(0).to_snapshot())
    assert len(log.segments) == 1 and log.log_start_offset == 0
    assert store.clock.now_ms() == NOW_MS + 2000
    store.stop(clean=False)
