"""A log's life with one failing disk call, for every call there is (``test_failing_calls``).

Run behind ``disk_shim.c``: ``python -m fault.failing_sweep DIRECTORY CONTROL ERROR LASTING FIRST
STRIDE``. Each trial is a fork of this process. Only calls below ``DIRECTORY/logs-0`` fail; the log
in ``logs-1`` must not notice. Prints the number of trials; what went wrong goes to stderr.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from support.faults.shim import CHANGES, READS, FailingCall
from support.storage.compaction import cleanable_end, compact
from support.storage.log_store import NOW_MS, LogStore, batch, sent, stored_values

from kbroker._ext.shared.partition_table import ONLINE
from kbroker.errors import StorageError
from kbroker.storage.background import BackgroundDisk, Job, OnDone
from kbroker.storage.cleaning.cleaner_checkpoints import CleanerCheckpoints
from kbroker.storage.log.partition_log import PartitionLog

CONFIG = {
    "segment.bytes": 400,
    "index.interval.bytes": 60,
    "segment.index.bytes": 4096,
    "file.delete.delay.ms": 0,
    "cleanup.policy": ("compact", "delete"),
}
KAFKA_STORAGE_ERROR = 56
BAD, GOOD = 0, 1  # slots, each in the directory of its number
NOT_HIT = 10


class Beside(BackgroundDisk):
    """Runs its jobs at once; their callbacks wait for the next tick, as in a worker."""

    def submit(self, job: Job, on_done: OnDone) -> None:
        self._pending += 1
        self._run(job, on_done)


class Store(LogStore):
    def make_background(self) -> BackgroundDisk:
        return Beside()


class Life:
    """What happens to the log in ``logs-0``; ``acked``: the records it accepted."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root, dirs=2)
        self.acked: dict[int, bytes] = {}
        self.deleted_up_to = 0
        self.sequence = 0
        self.compacted = False

    def open(self) -> None:
        self.store.try_open("bad", 0, slot=BAD, **CONFIG)
        assert self.store.try_open("good", 0, slot=GOOD, **CONFIG) is not None

    @property
    def log(self) -> PartitionLog | None:
        return self.store.manager.log(BAD)

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            log = self.log
            if log is None:
                return
            value = b"value-%d" % len(self.acked)
            key = b"key-%d" % len(self.acked)
            code, base, *_ = log.appender.append_batch(batch([value], key=key), NOW_MS)
            assert code in (0, KAFKA_STORAGE_ERROR), (code, log.appender.error_text)
            if code == 0:
                assert base not in self.acked
                self.acked[base] = value
                log.publish()

    def abort_transaction(self) -> None:
        if self.log is None:
            return
        self.log.appender.append_batch(sent(9, self.sequence), NOW_MS)
        code, *_ = self.log.appender.append_marker(9, 0, False, 0, NOW_MS, 0)
        self.sequence += 1
        assert code in (0, KAFKA_STORAGE_ERROR) or not self.log.producers()
        self.log.publish()

    def sync(self) -> None:
        if self.log is not None:
            self.log.appender.sync_now()

    def tick(self) -> None:
        self.store.clock.advance(70_000)
        self.store.manager.tick()

    def compact(self) -> None:
        log = self.log
        if log is None or cleanable_end(log) == 0:
            return
        self.compacted = True
        compact(log, now_ms=NOW_MS)
        CleanerCheckpoints(self.store.dirs[:1]).put(self.store.dirs[0], ("bad", 0), 1)

    def delete_records(self) -> None:
        if self.log is not None:
            self.deleted_up_to = 4
            self.log.delete_records(4)

    def restart(self) -> None:
        was_clean = self.store.manager.close(clean=True)
        self.store.start(clean={self.store.dirs[0]: was_clean, self.store.dirs[1]: False})
        self.open()

    def run(self) -> None:
        steps: list[Callable[[], None]] = [
            self.open, lambda: self.append(3), self.sync, lambda: self.append(9), self.tick,
            self.abort_transaction, self.sync, lambda: self.append(9), self.compact,
            lambda: self.append(2), self.delete_records, self.tick, self.restart,
            lambda: self.append(4), self.abort_transaction, self.tick,
        ]  # fmt: skip
        for step in steps:
            self.attempt(step)

    def attempt(self, step: Callable[[], None]) -> None:
        """Like the io worker and the cleaner: a StorageError takes the directory offline, any other
        error of a compaction ends only that compaction.
        """
        try:
            step()
        except StorageError:
            self.store.manager.fail_directory_of(BAD)
        except OSError:
            if step != self.compact:
                raise
        if self.log is None and self.store.manager.dirs.failures():
            assert self.store.slot(BAD)["state"] != ONLINE
            assert self.store.manager.dirs.failures().keys() == {self.store.dirs[0]}
        good = self.store.manager.log(GOOD)
        if good is not None:
            assert good.appender.append_batch(batch(), NOW_MS)[0] == 0
            good.publish()

    def check(self) -> None:
        """Calls work again, the broker starts: all accepted records are there."""
        self.store.manager.close(clean=False)
        self.store.start(clean=False)
        self.open()
        log = self.log
        assert log is not None, self.store.manager.offline_reason(BAD)
        found = dict(stored_values(log))
        lost = {o for o in self.acked if o >= self.deleted_up_to and found.get(o) != self.acked[o]}
        assert not lost, f"accepted and gone: {sorted(lost)} of {sorted(found)}"
        assert self.store.manager.log(GOOD) is not None
        before = log.log_end_offset
        assert log.appender.append_batch(batch(), NOW_MS)[:2] == (0, before)
        assert self.store.manager.close(clean=True)


def trial(root: Path, control: FailingCall, at: int, error: int, lasting: bool) -> int:
    """0: passed. NOT_HIT: passed, and there are no more calls. Anything else: failed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            life = Life(root)
            control.arm(at, error, classes=CHANGES | READS, lasting=lasting)
            life.run()
            if life.log is not None:  # the writes of a clean shutdown may fail as well
                life.store.manager.close(clean=True)
            what, hits = control.what, control.hits
            control.disarm()
            try:
                life.check()
            except BaseException as problem:
                raise AssertionError(f"call {at} ({what}): {problem}") from problem
            code = 0 if hits else NOT_HIT
        except BaseException:
            print(f"call {at}: {control.what}", file=sys.stderr)
            traceback.print_exc()
        finally:
            control.disarm()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def main() -> int:
    root, control = Path(sys.argv[1]), FailingCall(Path(sys.argv[2]))
    error, lasting, at, stride = (int(word) for word in sys.argv[3:])
    gc.freeze()
    count = failed = 0
    while True:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        code = trial(root, control, at, error, bool(lasting))
        count += 1
        if code == NOT_HIT:
            break
        failed += code != 0
        at += stride
    print(count, at)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
