"""Opens the logs of an io worker: finds or creates the directory, loads the files, serves the slot.

Runs in the worker's loop and blocks for a recovery if the last stop was not clean; several logs may
be recovered at once (``recovery_threads``). A log that cannot be opened goes offline with its slot
OFFLINE and the reason logged: it is damaged, or its directory has failed. If descriptors run out,
it waits for the next attempt, which finds what a start finds after a kill.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from kbroker.errors import ShortageError, StorageError
from kbroker.storage.damage import DamagedLogError
from kbroker.storage.dirs.log_dir import LocalLogDir
from kbroker.storage.dirs.placement import Placement
from kbroker.storage.dirs.suspects import Suspects
from kbroker.storage.files import blames_disk, is_of_partition
from kbroker.storage.formats import RECOVERY_POINT_CHECKPOINT, partition_dir_name
from kbroker.storage.log.log_host import LogHost, LogIdentity
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.storage.manager.checkpoint_writer import CheckpointWriter
from kbroker.storage.manager.open_logs import OpenLogs
from kbroker.storage.manager.recovery_threads import OpenRequest, PlacedLog, loading
from kbroker.storage.repair.recovery import LoadedLog, LoadOptions, load_epochs, load_log
from kbroker.storage.shortages import Shortages
from kbroker.storage.topic_settings import LogConfig, TopicConfig
from kbroker.types import FIRST_OFFSET, Offset

logger = logging.getLogger(__name__)


class LogOpening:
    """Made by the log manager, which is the host of every log that is opened here."""

    def __init__(
        self,
        host: LogHost,
        logs: OpenLogs,
        placement: Placement,
        shortages: Shortages,
        checkpoints: CheckpointWriter,
        suspects: Suspects,
        *,
        clean_start: bool | Mapping[str, bool],
        settings: Callable[[TopicConfig], LogConfig],
        threads_per_dir: Callable[[], int],
        now_ms: Callable[[], int],
        progress: Callable[[], None] | None,
        on_failure: Callable[[str, OSError], object],
    ) -> None:
        """clean_start, progress: as for the manager. on_failure: called with a failed directory."""
        self._host = host
        self._logs = logs
        self._placement = placement
        self._shortages = shortages
        self._checkpoints = checkpoints
        self._suspects = suspects
        self._clean_start = clean_start
        self._settings = settings
        self._threads_per_dir = threads_per_dir
        self._now_ms = now_ms
        self._progress = progress
        self._on_failure = on_failure
        # Within ``recovering``: logs that are being loaded, by slot; None: it is offline.
        self._placed: dict[int, PlacedLog | None] = {}

    def open(self, request: OpenRequest) -> PartitionLog | None:
        """Open the log, creating it if no directory has it, and publish its slot. None if it goes
        offline.
        """
        if request.slot in self._placed:
            placed = self._placed.pop(request.slot)
        else:
            placed = self._place(request)
        return None if placed is None else self._serve(placed)

    @contextmanager
    def recovering(self, requests: Sequence[OpenRequest]) -> Iterator[None]:
        """Within it, ``open`` of each, in that order, finds the log recovered.

        Several are recovered at once; what is said and done of each is as without it.
        """
        if self.recoveries_at_once == 1:
            yield
            return
        self._placed = {
            request.slot: self._place(request)
            for request in requests
            if request.slot not in self._logs.by_slot
        }
        placed_logs = [placed for placed in self._placed.values() if placed is not None]
        try:
            with loading(
                [one for one in placed_logs if one.needs_recovery], self._threads_per_dir()
            ):
                yield
        finally:
            self._placed = {}

    @property
    def recoveries_at_once(self) -> int:
        """The number of logs this worker may recover at a time; 1 if none needs it."""
        unclean = [log_dir for log_dir in self._placement.dirs if not self._is_clean(log_dir.path)]
        return max(1, self._threads_per_dir() * len(unclean))

    def _is_clean(self, path: str) -> bool:
        if isinstance(self._clean_start, bool):
            return self._clean_start
        return self._clean_start.get(path, False)

    # ---- where it is ----

    def _place(self, request: OpenRequest) -> PlacedLog | None:
        """Find or create the partition's directory; None, with the slot OFFLINE, if none can be
        used.
        """
        try:
            return self._find_place(request)
        except Exception as error:
            self._mark_damaged(request, error)
            return None

    def _find_place(self, request: OpenRequest) -> PlacedLog | None:
        key = request.key
        self._shortages.forget(request.slot)
        if self._logs.slot_of(key) not in (None, request.slot):
            self._logs.begin(request, 0)
            self._logs.mark_offline(
                request, "the log of an earlier topic of that name is not deleted yet"
            )
            return None
        try:
            self._shortages.ensure_room()
            with self._placement.choosing():
                log_dir = self._placement.find(key, request.owner, is_new=request.is_new)
                if log_dir is None and (request.is_new or self._placement.dirs.all_online):
                    log_dir = self._placement.choose(key)
                self._logs.begin(request, log_dir.index if log_dir is not None else 0)
        except ShortageError as error:
            self._wait(request, 0, error)
            return None
        except OSError as error:
            self._logs.mark_offline(request, f"cannot determine its log directory: {error}")
            return None
        if log_dir is None:
            self._logs.mark_offline(request, "no online log directory has it")
            return None
        if log_dir.error is not None:
            self._logs.mark_offline(request, f"{log_dir.path} is offline: {log_dir.error}")
            return None
        identity = LogIdentity(
            request.topic,
            request.owner,
            request.partition,
            request.slot,
            log_dir.path,
            log_dir.partition_path(key),
        )
        try:
            created = self._ensure_created(log_dir, request)
            options = self._load_options(log_dir, request, created)
        except Exception as error:
            self._not_opened(log_dir, request, error)
            return None
        return PlacedLog(request, log_dir, identity, created, options)

    def _ensure_created(self, log_dir: LocalLogDir, request: OpenRequest) -> bool:
        """Make the partition's directory exist and belong to this topic id; True if it is new."""
        key = request.key
        if log_dir.holds(key):
            if log_dir.belongs(key, request.owner, is_new=request.is_new):
                return False
            log_dir.set_stray_aside(key)
        if log_dir.died(key):
            # A checkpoint in progress may still have the deleted log's lines.
            self._checkpoints.wait()
        log_dir.create(key, request.owner)
        # Lines of an earlier log of this name were dropped from the files.
        self._checkpoints.forget()
        return True

    def _load_options(
        self, log_dir: LocalLogDir, request: OpenRequest, created: bool
    ) -> LoadOptions:
        key, settings = request.key, self._settings(request.topic_config)
        return LoadOptions(
            clean=self._is_clean(log_dir.path) and not log_dir.is_quarantined(key),
            recovery_point=FIRST_OFFSET if created else log_dir.recovery_point(key),
            log_start_offset=log_dir.start_offset(key),
            log_start_is_known=log_dir.start_is_known(key),
            index_bytes_max=settings.segment_index_bytes,
            index_interval_bytes=settings.index_interval_bytes,
            gaps_allowed=settings.compact or log_dir.was_compacted(key),
            progress=self._progress,
        )

    # ---- what is in it ----

    def _serve(self, placed: PlacedLog) -> PartitionLog | None:
        """Load the log and publish its slot; None, with the slot OFFLINE, when that fails."""
        request, log_dir = placed.request, placed.log_dir
        if log_dir.error is not None:  # since it was placed
            self._logs.mark_offline(request, f"{log_dir.path} is offline: {log_dir.error}")
            return None
        try:
            return self._loaded(placed)
        except Exception as error:
            self._not_opened(log_dir, request, error)
            return None

    def _loaded(self, placed: PlacedLog) -> PartitionLog:
        """May raise any exception, because the disk may contain anything."""
        request, log_dir, key = placed.request, placed.log_dir, placed.request.key
        try:
            loaded = placed.load()
        except DamagedLogError as damage:
            if not request.has_leader or damage.readable_to is None:
                raise
            loaded = self._healed(placed, damage, damage.readable_to)
        if log_dir.is_quarantined(key):
            log_dir.end_quarantine(key)
        committed = None
        if not request.is_alone:
            committed = max(log_dir.high_watermark(key), self._logs.take_shown(request.slot))
        log = PartitionLog(
            placed.identity,
            self._host,
            self._logs.table,
            loaded,
            load_epochs(placed.identity.path, loaded, request.leads_in),
            self._settings(request.topic_config),
            now_ms=self._now_ms(),
            leader_epoch=request.leads_in,
            high_watermark=committed,
            created=placed.created,
        )
        try:
            self._logs.serve(log)
        except BaseException:
            self._logs.close_alone(request.slot, "it was not opened")
            raise
        return log

    def _healed(self, placed: PlacedLog, damage: DamagedLogError, end: Offset) -> LoadedLog:
        """Drop everything from ``end`` on, which the leader has, and load the rest.

        INVARIANT: it is noted as suspect before anything is dropped: should it be elected before it
        has caught up, it asks the other replicas first. Raises DamagedLogError, OSError.
        """
        log_dir, key = placed.log_dir, placed.request.key
        logger.error(
            "partition %s is damaged: %s; as another broker leads it, everything from offset %d on "
            "is dropped here and copied from there",
            partition_dir_name(*key), damage, end,
        )  # fmt: skip
        self._suspects.add(log_dir, key)
        log_dir.lower_recovery_point(key, end)
        self._checkpoints.forget(RECOVERY_POINT_CHECKPOINT)
        options = placed.options
        options.clean, options.recovery_point = False, end
        return load_log(placed.identity.path, options)

    # ---- what is wrong with it ----

    def _not_opened(self, log_dir: LocalLogDir, request: OpenRequest, error: Exception) -> None:
        """Any error in the files of one log costs that partition, never the process, which would
        find the same after a restart.
        """
        cause = error.cause if isinstance(error, StorageError) else error
        path = log_dir.partition_path(request.key)
        if isinstance(cause, OSError) and not is_of_partition(cause, path):
            self._failed(log_dir, request, cause)
            return
        log_dir.quarantine(request.key, error)
        self._mark_damaged(request, error)

    def _mark_damaged(self, request: OpenRequest, error: Exception) -> None:
        if not isinstance(error, DamagedLogError | OSError):
            name = partition_dir_name(*request.key)
            logger.error(
                "partition %s: unexpected error while opening the log", name, exc_info=error
            )
        self._logs.mark_offline(request, f"damaged: {error or type(error).__name__}")

    def _failed(self, log_dir: LocalLogDir, request: OpenRequest, error: OSError) -> None:
        if isinstance(error, ShortageError):
            self._wait(request, log_dir.index, error)
            return
        if blames_disk(error):
            self._on_failure(log_dir.path, error)
        self._logs.mark_offline(request, str(error))

    def _wait(self, request: OpenRequest, log_dir_index: int, error: ShortageError) -> None:
        self._shortages.report(error)
        self._shortages.wait(request.slot)
        self._logs.mark_offline_for_now(request, log_dir_index, str(error))
