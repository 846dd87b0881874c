"""The first offsets of a stream, which stay the same however often they are requested.

Spark asks a Python source for its initial offset twice at the first start, and again after a crash
before the first micro-batch was committed; the last result becomes the start of that batch, while
its end stands in Spark's log. A result that differs from the first one loses records. So the first
answer is kept outside the process: in a file below ``checkpointLocation`` (of the reader), or as
the committed offsets of ``groupId``; all later attempts use it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from hashlib import sha256

from kbroker.spark.checkpoint import checkpoint_files, has_planned
from kbroker.spark.offsets import BrokerQueries, assigned_partitions, resolve
from kbroker.spark.options.option_values import (
    EARLIEST,
    LimitKind,
    OptionError,
    TopicPartition,
    TopicSubscription,
    offsets_from_json,
    offsets_to_json,
)
from kbroker.spark.options.options import ReadOptions
from kbroker.uuids import parse_uuid, uuid_text

logger = logging.getLogger(__name__)

FORMAT = 1


def first_offsets(view: BrokerQueries, options: ReadOptions) -> dict[TopicPartition, int]:
    """The offsets the stream of these options begins with. Raises OptionError."""

    def make() -> dict[TopicPartition, int]:
        partitions = assigned_partitions(view, options.subscription)
        group = options.group_id
        return resolve(view, options.starting, partitions, side="starting", group_id=group)

    if options.checkpoint_location:
        return FileKeeper(options, view).get_or_keep(make)
    if options.group_id:
        return GroupKeeper(view, options).get_or_keep(make)
    made = make()
    if options.starting.moves and not options.allow_unsafe_start and not _at_zero(options, made):
        raise OptionError(
            f"a stream that starts at {options.starting.describe()} must keep its first offsets, "
            "or a crash in its first micro-batch loses records: write checkpointLocation on the "
            "reader (the same as on the writer) or groupId; or set allowUnsafeStart=true to "
            "start without that"
        )
    return made


def _at_zero(options: ReadOptions, made: Mapping[TopicPartition, int]) -> bool:
    """Earliest offsets of logs that never lost a record: a different value later means that
    retention has deleted records in between, and the next start is refused here.
    """
    earliest = options.starting.kind is LimitKind.EARLIEST or (
        options.starting.kind is LimitKind.OFFSETS
        and all(offset == EARLIEST or offset >= 0 for offset in options.starting.values.values())
    )
    return earliest and not any(
        offset for key, offset in made.items() if options.starting.values.get(key, -1) < 0
    )


class GroupKeeper:
    """Stored as committed offsets, which then follow the stream. Partitions that the group does not
    know start as the options say.
    """

    def __init__(self, view: BrokerQueries, options: ReadOptions) -> None:
        self._view = view
        self._options = options

    def get_or_keep(
        self, make: Callable[[], Mapping[TopicPartition, int]]
    ) -> dict[TopicPartition, int]:
        group = self._options.group_id or ""
        partitions = assigned_partitions(self._view, self._options.subscription)
        kept = dict(self._view.committed(group, partitions))
        if partitions - set(kept):
            made = {key: offset for key, offset in make().items() if key not in kept}
            self._view.commit(group, made)
            kept.update(made)
        return kept


class FileKeeper:
    """Kept in ``<checkpointLocation>/kbroker/first-offsets-<subscription>.json``, written once."""

    def __init__(self, options: ReadOptions, view: BrokerQueries) -> None:
        self._view = view
        self._subscription = options.subscription.describe()
        self._start = options.starting.describe()
        self._location = options.checkpoint_location or ""
        self._files = checkpoint_files(self._location)
        self._name = first_offsets_name(options.subscription)

    def get_or_keep(
        self, make: Callable[[], Mapping[TopicPartition, int]]
    ) -> dict[TopicPartition, int]:
        text = self._files.read(self._name)
        if text is None:
            offsets = make()
            ids = self._view.topic_ids()
            document = {
                "format": FORMAT,
                "subscription": self._subscription,
                "starting": self._start,
                "offsets": offsets_to_json(offsets),
                "topics": {
                    t: uuid_text(ids[t]) for t in sorted({t for t, _ in offsets} & set(ids))
                },
            }
            self._files.put_if_absent(self._name, json.dumps(document, indent=1) + "\n")
            text = self._files.read(self._name)
        return self._parse(text or "")

    def _parse(self, text: str) -> dict[TopicPartition, int]:
        where = self._files.describe(self._name)
        try:
            document = json.loads(text)
            if document["format"] != FORMAT:
                raise ValueError(f"format {document['format']}")
            offsets = offsets_from_json(document["offsets"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OptionError(
                f"{where} does not contain first offsets ({error}): restore it, or delete it with "
                "the whole checkpoint to start over"
            ) from error
        if document["starting"] != self._start:
            # A repeated micro-batch begins where it began before, as in Spark's connector: a time
            # computed at each start would differ.
            if has_planned(self._location):
                logger.warning(
                    "%s was recorded for a start at %s and stays in effect; %s has no effect on "
                    "a query that has already started",
                    *(where, document["starting"], self._start),
                )
                return offsets
            raise OptionError(
                f"{where} was recorded for a start at {document['starting']}, but this stream "
                f"starts at {self._start}: use the former, or give this stream its own "
                "checkpointLocation"
            )
        return offsets


def first_offsets_name(subscription: TopicSubscription) -> str:
    """The name of a stream's file: several streams may share a checkpoint."""
    return f"first-offsets-{sha256(subscription.describe().encode()).hexdigest()[:12]}.json"


def kept_topics(text: str | None) -> dict[str, bytes]:
    """The ids of topics in a file of first offsets; older ones have none."""
    try:
        topics = json.loads(text or "{}").get("topics", {})
        return {str(name): parse_uuid(one) for name, one in topics.items()}
    except (ValueError, AttributeError, TypeError):
        return {}  # reading its offsets reports a damaged file
