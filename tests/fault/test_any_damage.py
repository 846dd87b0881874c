"""Random damage to files of a log directory, with a new seed each time (exam E3).

Promise: whatever is in a partition's files costs that partition, offline and named, and nothing
else. No exception gets out of a start, of what time brings, or of a stop: an io worker that dies of
it would die again in its next life.
"""

import os
import random
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from fault.damage import ALL_DAMAGES
from support.storage.log_store import (
    NOW_MS,
    LogStore,
    append,
    batch,
    end_transaction,
    sent,
    stored_values,
)

from kbroker._ext.shared.partition_table import OFFLINE, ONLINE
from kbroker.errors import StorageError
from kbroker.storage.files import is_of_partition
from kbroker.storage.log.log_lookup import list_offsets

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

TRIALS = 60
CONFIG = {
    "segment.bytes": 700,
    "index.interval.bytes": 60,
    "segment.index.bytes": 4096,
    "file.delete.delay.ms": 0,
}
DAMAGED, OTHER = ("t", 0), ("other", 0)
WHOLE = [(offset, b"other-%d" % offset) for offset in range(12)]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Several segments with records, transactions and aborts; the first half is synced and
    checkpointed.
    """
    store = LogStore(tmp_path_factory.mktemp("template"))
    log, other = store.open(**CONFIG), store.open(*OTHER, 1, **CONFIG)
    saved = []
    for number in range(12):
        append(other, batch([b"other-%d" % number]))
        append(
            log,
            batch([b"plain-%d" % number], producer_id=3, producer_epoch=0, base_sequence=number),
        )
        append(log, sent(9, number, [b"in-%d" % number]))
        if number % 2:
            end_transaction(log, 9, commit=number % 4 == 1)
        if number == 6:
            log.flush()
            other.flush()
            store.manager.checkpoint()
            saved = [(p, p.read_bytes()) for p in Path(store.dirs[0]).iterdir() if p.is_file()]
    store.stop(clean=False)
    unclean = Path(store.dirs[0])
    clean = unclean.with_name("clean")
    again = LogStore(tmp_path_factory.mktemp("stopped"))
    shutil.copytree(unclean, again.dirs[0], dirs_exist_ok=True)
    again.start()
    again.open(**CONFIG)
    again.open(*OTHER, 1, **CONFIG)
    again.stop(clean=True)
    shutil.copytree(again.dirs[0], clean)
    for path, data in saved:
        path.write_bytes(data)
    return {False: unclean, True: clean}


@pytest.fixture
def directory():
    """In memory if possible: hundreds of starts sync to it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as path:
        yield Path(path)


def damage(log_dir: Path, chance: random.Random) -> list[str]:
    """Damage one to four files: those of one partition, or the directory's own; returns a
    description.
    """
    done = []
    for _ in range(chance.randrange(1, 5)):
        files = sorted(
            path
            for path in [*log_dir.iterdir(), *(log_dir / "t-0").iterdir()]
            if path.is_file() and not path.is_symlink()
        )
        path, how = chance.choice(files), chance.choice(sorted(ALL_DAMAGES))
        if path.parent == log_dir and how == "make_directory":
            # No checkpoint could be written: the whole directory is offline, which is logged.
            continue
        done.append(f"{how} {path.name}")
        ALL_DAMAGES[how](path, chance)
    return done


def use(store: LogStore, chance: random.Random) -> None:
    """Use a log as an io worker does, including its error handling."""
    log = store.manager.log(0)
    assert store.slot()["state"] == (OFFLINE if log is None else ONLINE)
    if log is None:
        assert store.manager.offline_reason(0)
    else:
        for timestamp in (NOW_MS - 1, NOW_MS, -3):
            with suppress(ValueError, OSError):  # a damaged log: the client gets an error
                list_offsets(log, timestamp)
        try:
            again = batch(producer_id=3, producer_epoch=0, base_sequence=99)
            log.appender.append_batch(again, NOW_MS)
            append(log, batch([b"next"]))
            if chance.random() < 0.3:
                log.delete_records(chance.randrange(log.log_end_offset + 1))
        except StorageError:
            store.manager.fail_directory_of(0)
        except (ValueError, OSError) as error:
            assert is_of_partition(error, log.path)
    store.clock.advance(400_000)
    store.manager.tick()
    store.manager.turn()
    store.manager.checkpoint()


def check_other(store: LogStore, *, is_shared: bool) -> None:
    """The other partition is intact. is_shared: a file with a line of it was damaged, too; numbers
    in it have no checksum.
    """
    other = store.try_open(*OTHER, 1, is_new=False, **CONFIG)
    if other is None and is_shared:
        assert "was synced up to" in store.manager.offline_reason(1)
        return
    assert other is not None, store.manager.offline_reason(1)
    assert stored_values(other) == WHOLE[other.log_start_offset :]
    assert is_shared or other.log_start_offset == 0


def test_any_damage_costs_its_partition_alone(template, directory, seed, scale, caplog):
    outcomes = {True: 0, False: 0}
    for number in range(TRIALS * scale):
        chance = random.Random(f"{seed}-{number}")
        clean, root = chance.random() < 0.5, directory / str(number)
        root.mkdir()
        shutil.copytree(template[clean], root / "logs-0")
        caplog.clear()
        done = damage(root / "logs-0", chance)
        where = f"seed {seed}, trial {number}, clean {clean}: {'; '.join(done)}"
        try:
            for _ in range(2):
                store = LogStore(root)
                store.start(clean=clean)
                is_open = store.try_open(is_new=False, **CONFIG) is not None
                outcomes[is_open] += 1
                check_other(store, is_shared="-offset-checkpoint" in where)
                use(store, chance)
                assert store.manager.dirs.all_online
                clean = chance.random() < 0.5
                store.stop(clean=clean)
        except BaseException:
            print(where)
            raise
        assert "Traceback" not in caplog.text, (where, caplog.text[-3000:])
        shutil.rmtree(root)
    print(f"opened {outcomes[True]} times, held offline {outcomes[False]} times")
    assert outcomes[True] and outcomes[False]
