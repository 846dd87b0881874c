"""The checkpoint of a streaming query: our own files in it, and Spark's.

Local paths are linked into place, so that of two writers one wins; on other file systems (hdfs://,
s3://, ... through pyarrow) a file is moved there if there is none.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from kbroker.spark.options.option_values import OptionError

logger = logging.getLogger(__name__)

# A text that replaces another one, where that cannot be done atomically.
_NEW = ".new"


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

    def names(self) -> list[str]:
        """The oldest first."""
        with contextlib.suppress(FileNotFoundError):
            files = [(one.stat().st_mtime_ns, one.name) for one in os.scandir(self._folder)]
            return [name for _, name in sorted(files)]
        return []

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
    def __init__(self, location: str, folder: str) -> None:
        from pyarrow import fs

        self._filesystem: Any
        self._filesystem, path = fs.FileSystem.from_uri(location)
        self._folder = f"{path.rstrip('/')}{folder}"
        self._location = f"{location}{folder}"

    def describe(self, name: str) -> str:
        return f"{self._location}/{name}"

    def read(self, name: str) -> str | None:
        for place in (name, f"{name}{_NEW}"):
            with contextlib.suppress(FileNotFoundError):
                with self._filesystem.open_input_stream(f"{self._folder}/{place}") as stream:
                    return str(stream.read().decode())
        return None

    def names(self) -> list[str]:
        from pyarrow import fs

        files = self._filesystem.get_file_info(fs.FileSelector(self._folder, allow_not_found=True))
        return [one.base_name for one in sorted(files, key=lambda one: one.mtime_ns or 0)]

    def put_if_absent(self, name: str, text: str) -> None:
        temporary, place = self._written(name, text), f"{self._folder}/{name}"
        if self._is_there(place):
            self._filesystem.delete_file(temporary)
        else:
            self._filesystem.move(temporary, place)

    def replace(self, name: str, text: str) -> None:
        """HDFS does not move onto an existing file. A crash leaves the older text, or only the new
        one, which ``read`` finds.
        """
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
    """The folder ``kbroker`` in a checkpoint. Raises OptionError if Python cannot access it."""
    try:
        return _files(location, "/kbroker")
    except (ImportError, OSError, ValueError) as error:
        raise OptionError(
            f"checkpointLocation {location} of the reader cannot be reached from Python ({error}):"
            " write a path or URI that pyarrow opens, or groupId instead"
        ) from error


def has_planned(location: str) -> bool:
    """Whether the query of this checkpoint has recorded the offsets of its first micro-batch."""
    return _files(location, "/offsets").read("0") is not None


def query_id(location: str) -> str | None:
    """The id of the query that owns the checkpoint, as recorded by Spark; None if it cannot be read
    from Python.
    """
    try:
        files = _files(location, "")
        text = files.read("metadata")
        if text is None:
            raise FileNotFoundError(f"there is no {files.describe('metadata')}")
        return str(json.loads(text)["id"])
    except (ImportError, OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("cannot identify the query of checkpointLocation %s: %s", location, error)
        return None


def _files(location: str, folder: str) -> _LocalFiles | _OtherFiles:
    parsed = urlparse(location)
    if parsed.scheme in ("", "file") or len(parsed.scheme) == 1:
        path = unquote(parsed.path) if parsed.scheme == "file" else location
        return _LocalFiles(Path(f"{path}{folder}"))
    return _OtherFiles(location, folder)
