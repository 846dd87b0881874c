"""The first offsets of a stream, the same ones however often they are asked for.

Spark asks a Python source for its initial offset twice at the first start, and again after a crash
before the first micro-batch was committed; what it is told the last time becomes the start of that
batch, while its end stands in Spark's log. An answer that moved meanwhile loses records. So the
first answer is kept outside the process: in a file below ``checkpointLocation`` (of the reader), or
as the committed offsets of ``groupId``; whoever comes second takes what the first one kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlparse

from kbroker.spark.offsets import LogView, assigned_partitions, resolve
from kbroker.spark.options import (
    EARLIEST,
    LimitKind,
    OptionError,
    ReadOptions,
    Subscription,
    TopicPartition,
    offsets_from_json,
    offsets_to_json,
)
from kbroker.uuids import parse_uuid, uuid_text

FORMAT = 1
# A text that is to take the place of another one, where that cannot be done at once.
_NEW = ".new"


class Keeper(Protocol):
    """Where first offsets are kept."""

    def get_or_keep(
        self, make: Callable[[], Mapping[TopicPartition, int]]
    ) -> dict[TopicPartition, int]:
        """What is kept; ``make`` is asked, and its answer kept, only where nothing is yet."""


def first_offsets(view: LogView, options: ReadOptions) -> dict[TopicPartition, int]:
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
            f"a stream that starts at {options.starting.describe()} must keep its first offsets,"
            " or a crash in its first micro-batch loses records: write checkpointLocation on the"
            " reader (the same as on the writer) or groupId; allowUnsafeStart=true goes without"
        )
    return made


def _at_zero(options: ReadOptions, made: Mapping[TopicPartition, int]) -> bool:
    """Earliest offsets of logs that never lost a record: a later answer that differs says that
    retention came between, and the next start is refused here."""
    earliest = options.starting.kind is LimitKind.EARLIEST or (
        options.starting.kind is LimitKind.OFFSETS
        and all(offset == EARLIEST or offset >= 0 for offset in options.starting.values.values())
    )
    return earliest and not any(
        offset for key, offset in made.items() if options.starting.values.get(key, -1) < 0
    )


class GroupKeeper:
    """Kept as committed offsets, which then follow the stream. Partitions the group knows nothing
    about start as the options say."""

    def __init__(self, view: LogView, options: ReadOptions) -> None:
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
    """Kept in ``<checkpointLocation>/kbroker/first-offsets-<subscription>.json``, written once.

    Local paths are linked into place, so that of two writers one wins; on other file systems
    (hdfs://, s3://, ... through pyarrow) the file is moved there if there is none.
    """

    def __init__(self, options: ReadOptions, view: LogView) -> None:
        self._view = view
        self._subscription = options.subscription.describe()
        self._start = options.starting.describe()
        self._files = checkpoint_files(options.checkpoint_location or "")
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
                f"{where} does not hold first offsets ({error}): restore it, or delete it with the"
                " whole checkpoint to start anew"
            ) from error
        if document["starting"] != self._start:
            raise OptionError(
                f"{where} was kept for a start at {document['starting']}, this stream starts at"
                f" {self._start}: write the former, or give this stream a checkpointLocation of"
                " its own"
            )
        return offsets


def first_offsets_name(subscription: Subscription) -> str:
    """Of the file of a stream: several may share a checkpoint."""
    return f"first-offsets-{sha256(subscription.describe().encode()).hexdigest()[:12]}.json"


def kept_topics(text: str | None) -> dict[str, bytes]:
    """The ids of topics in a file of first offsets; older ones have none."""
    try:
        found = json.loads(text or "{}").get("topics", {})
        return {str(name): parse_uuid(one) for name, one in found.items()}
    except (ValueError, AttributeError, TypeError):
        return {}  # a damaged file is told by who reads its offsets


# -- places


class _LocalFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def describe(self, name: str) -> str:
        return str(self._folder / name)

    def read(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def put_if_absent(self, name: str, text: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = self._written(name, text)
        try:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, self._folder / name)
        finally:
            temporary.unlink()
        self._sync()

    def replace(self, name: str, text: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._written(name, text).replace(self._folder / name)
        self._sync()

    def _written(self, name: str, text: str) -> Path:
        temporary = self._folder / f".{name}.{uuid.uuid4().hex}"
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return temporary

    def _sync(self) -> None:
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class _OtherFiles:
    def __init__(self, location: str) -> None:
        from pyarrow import fs

        self._filesystem: Any
        self._filesystem, path = fs.FileSystem.from_uri(location)
        self._folder = f"{path.rstrip('/')}/kbroker"
        self._location = location

    def describe(self, name: str) -> str:
        return f"{self._location}/kbroker/{name}"

    def read(self, name: str) -> str | None:
        for place in (name, f"{name}{_NEW}"):
            with contextlib.suppress(FileNotFoundError):
                with self._filesystem.open_input_stream(f"{self._folder}/{place}") as stream:
                    return str(stream.read().decode())
        return None

    def put_if_absent(self, name: str, text: str) -> None:
        temporary, place = self._written(name, text), f"{self._folder}/{name}"
        if self._is_there(place):
            self._filesystem.delete_file(temporary)
        else:
            self._filesystem.move(temporary, place)

    def replace(self, name: str, text: str) -> None:
        """HDFS moves onto no file that is there. A crash leaves the older text, or only the new
        one, which ``read`` finds."""
        temporary, place = self._written(name, text), f"{self._folder}/{name}"
        for target in (f"{place}{_NEW}", place):
            if self._is_there(target):
                self._filesystem.delete_file(target)
            self._filesystem.move(temporary, target)
            temporary = target

    def _is_there(self, place: str) -> bool:
        from pyarrow import fs

        return bool(self._filesystem.get_file_info(place).type != fs.FileType.NotFound)

    def _written(self, name: str, text: str) -> str:
        self._filesystem.create_dir(self._folder, recursive=True)
        temporary = f"{self._folder}/.{name}.{uuid.uuid4().hex}"
        with self._filesystem.open_output_stream(temporary) as stream:
            stream.write(text.encode())
        return temporary


def checkpoint_files(location: str) -> _LocalFiles | _OtherFiles:
    """The folder ``kbroker`` in a checkpoint. Raises OptionError where Python cannot reach it."""
    parsed = urlparse(location)
    if parsed.scheme in ("", "file") or len(parsed.scheme) == 1:
        path = unquote(parsed.path) if parsed.scheme == "file" else location
        return _LocalFiles(Path(path) / "kbroker")
    try:
        return _OtherFiles(location)
    except (ImportError, OSError, ValueError) as error:
        raise OptionError(
            f"checkpointLocation {location} of the reader cannot be reached from Python ({error}):"
            " write a path or URI that pyarrow opens, or groupId instead"
        ) from error
