"""``kbroker-load``: the command line of a load. Exit codes: 0 done, 1 failed, 2 wrong arguments,
3 ``verify`` found something."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from kbroker import __version__
from kbroker.client.errors import ClientError
from kbroker.spark.direct import SparkMissing, TaskError
from kbroker.spark.load.arguments import (
    build_parser,
    check_together,
    tell_doubts,
    tell_no_match,
)
from kbroker.spark.load.commits import LoadError
from kbroker.spark.load.destination import refuse_url
from kbroker.wording import counted

if TYPE_CHECKING:
    from kbroker.spark.direct import Runner
    from kbroker.spark.load.database import Database
    from kbroker.spark.load.decode import JsonDecoder
    from kbroker.spark.load.destination import Destination
    from kbroker.spark.load.directory import Directory
    from kbroker.spark.load.engine import Load, LoadSettings, Step
    from kbroker.spark.load.positions import PositionBounds
    from kbroker.spark.load.source import BrokerSource
    from kbroker.spark.load.writer import FileOptions

EXIT_FAILED, EXIT_USAGE, EXIT_FOUND = 1, 2, 3
# A follower checks for new records this often when there were none.
_IDLE_S = 1.0
_FOLLOW_S = 10.0  # between commits, unless --follow-seconds is given


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; if it fails, one line on standard error says why."""
    parser = build_parser(__version__)
    given = parser.parse_args(arguments)
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "run": _run,
        "status": _status,
        "verify": _verify,
        "recover": _recover,
        "compact": _compact,
        "expire": _expire,
    }
    check_together(parser, given)
    try:
        return commands[given.command](given)
    except TaskError as err:
        _say(f"kbroker-load: a task failed: {err}", sys.stderr)
        return EXIT_FAILED
    except (LoadError, ClientError, SparkMissing) as err:
        _say(f"kbroker-load: {err}", sys.stderr)
        return EXIT_FAILED
    except OSError as err:
        # A full disk has no name. The location of a database may contain a password.
        named = err.filename is not None or given.sink == "jdbc"
        _say(f"kbroker-load: {err}" + ("" if named else f": {given.dest}"), sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        _say("kbroker-load: stopped; everything that was committed is complete", sys.stderr)
        return 130


def _say(line: str, where: TextIO | None = None) -> None:
    print(line, file=where or sys.stdout, flush=True)


def load_name(given: argparse.Namespace) -> str:
    """The name of the load in commits, offsets and tables."""
    return str(given.name or "load")


def destination_of(given: argparse.Namespace) -> Database | Directory:
    """Raises LoadError when ``--dest`` cannot be one."""
    from kbroker.spark.load.writer import FileOptions

    if given.sink == "jdbc":
        from kbroker.spark.load.database import Database

        return Database(given.dest, given.table, load_name(given))
    files = FileOptions(
        given.partition_by, given.codec, given.codec_level, given.file_bytes, given.bucket_ms
    )
    return _directory(given, files)


def _directory(given: argparse.Namespace, files: FileOptions | None = None) -> Directory:
    if given.sink == "jdbc":
        raise LoadError(f"{given.command} is only for folders; a database maintains its own tables")
    refuse_url(given.dest)
    from kbroker.spark.load.folders import folder

    return folder(given.sink, given.dest, files)


# -- run


def _run(given: argparse.Namespace) -> int:
    from kbroker.spark.load.engine import Load

    source = _source(given)
    destination = destination_of(given)
    # Errors of topics or the cluster are found before Spark starts.
    present = source.bounds()
    if not present:
        tell_no_match("kbroker-load", given, given.bootstrap, given.follow)
    _check_offsets(given, present)
    destination.prepare()
    with destination.locked():
        runner = _runner(given)
        job = Load(
            source,
            destination,
            runner,
            _settings(given),
            decoder=_decoder(given),
            report=_progress(given),
        )
        try:
            _rewind(given, job, destination, source)
            _catch_up(given, job)
        finally:
            destination.close()
    return 0


def _check_offsets(
    given: argparse.Namespace, present: Mapping[tuple[str, int], PositionBounds]
) -> None:
    """Raises LoadError if ``--from-offsets`` contains partitions that are not loaded, or offsets
    that are not written yet.
    """
    wanted: dict[tuple[str, int], int] = given.from_offsets or {}
    unknown = sorted(set(wanted) - set(present))
    if unknown:
        names = ", ".join(f"{topic} partition {partition}" for topic, partition in unknown)
        raise LoadError(f"--from-offsets contains {names}, which is not loaded")
    beyond = [
        f"offset {offset} of {topic} partition {partition}, but the broker has "
        f"{present[topic, partition].start} to {present[topic, partition].end}"
        for (topic, partition), offset in sorted(wanted.items())
        if offset > present[topic, partition].end
    ]
    if beyond:
        raise LoadError(f"--from-offsets asks for {'; '.join(beyond)}")


def _source(given: argparse.Namespace) -> BrokerSource:
    from kbroker.spark.load.source import BrokerSource

    tell_doubts("kbroker-load", given.client_setting)
    return BrokerSource(
        given.bootstrap,
        dict(given.client_setting),
        tuple(given.topics),
        given.pattern,
        given.headers,
        given.isolation == "read_committed",
        milliseconds=given.sink == "jdbc",
    )


def _runner(given: argparse.Namespace) -> Runner:
    from kbroker.spark.direct import runner_of
    from kbroker.spark.load.progress import on_terminal

    progress = on_terminal(getattr(given, "quiet", False))
    return runner_of(f"kbroker-load {load_name(given)}", given.master, progress)


def _group(given: argparse.Namespace) -> str:
    """The group for which a run commits offsets; empty: none."""
    return str(given.group) if given.group is not None else f"kbroker-load.{load_name(given)}"


def _settings(given: argparse.Namespace) -> LoadSettings:
    from kbroker.spark.load.engine import LoadSettings

    return LoadSettings(
        load=load_name(given),
        group=_group(given) or None,
        first=given.from_offsets or {},
        first_ms=given.from_timestamp,
        records_max=given.max_records,
        bytes_max=given.max_bytes,
        seconds_max=None if given.max_minutes is None else given.max_minutes * 60,
        commit_bytes=given.commit_bytes,
        allow_loss=given.allow_data_loss,
        fail_on_error=given.fail_on_error,
        by_partition=given.split == "partition",
        bucket_ms=given.bucket_ms,
    )


def _decoder(given: argparse.Namespace) -> JsonDecoder | None:
    if given.value_format == "raw":
        return None
    from kbroker.spark.load.decode import JsonDecoder
    from kbroker.spark.load.fields import schema_of

    return JsonDecoder(schema_of(given.value_schema))


def _rewind(
    given: argparse.Namespace, job: Load, destination: Destination, source: BrokerSource
) -> None:
    """``--from-...`` on a destination that has been loaded before."""
    newest = destination.log.newest()
    if newest is None:
        if given.from_commit is not None:
            raise LoadError(f"there is no commit {given.from_commit}: nothing has been loaded yet")
        return
    if given.from_offsets is not None:
        job.rewind(given.from_offsets)
        return
    if given.from_commit is None and given.from_timestamp is None:
        return
    # Restricted to the requested topics: a destination may have others as well.
    present = source.bounds()
    places = [(t, partition) for t, of in newest.ends.items() for partition in of]
    places = [place for place in places if place in present]
    if given.from_commit is not None:
        old = destination.log.state(given.from_commit)
        # Recreated since: everything loaded belongs to another topic.
        anew = {topic for topic, one in newest.topics.items() if old.topics.get(topic, one) != one}
        starts = {
            (topic, partition): 0 if topic in anew else old.ends.get(topic, {}).get(partition, 0)
            for topic, partition in places
        }
    else:
        starts = source.offsets_at(places, given.from_timestamp)
    job.rewind(starts)


def _catch_up(given: argparse.Namespace, job: Load) -> None:
    while True:
        turn = time.monotonic()
        made = job.catch_up()
        if not given.follow:
            if not made and not given.quiet:
                _say("nothing new")
            return
        if job.is_over:
            return
        pause = (given.follow_seconds or _FOLLOW_S) if made else _IDLE_S
        time.sleep(max(0.0, pause - (time.monotonic() - turn)))


def _progress(given: argparse.Namespace) -> Callable[[Step], None]:
    """Print one line per topic of a commit, unless ``--quiet``; losses and deviations are printed
    in any case.
    """
    errors = f"the table {given.table}_errors" if given.sink == "jdbc" else "_kbroker/errors"

    def tell(step: Step) -> None:
        if not given.quiet:
            _tell(step, errors)
        for one in step.lost:
            _say(f"kbroker-load: commit {step.commit.number} skips: {one}", sys.stderr)
        if step.not_stored:
            _say(
                f"kbroker-load: commit {step.commit.number} is loaded, but its offsets could not "
                f"be committed for the group {_group(given)}, which lag monitoring uses: "
                f"{step.not_stored.rstrip('.')}. Grant that right, or use another --group ('' for "
                "none)",
                sys.stderr,
            )

    return tell


def _tell(step: Step, errors: str) -> None:
    from kbroker.spark.load.commits import RELOAD

    rows: dict[str, int] = {}
    size: dict[str, int] = {}
    for one in step.commit.ranges:
        rows[one.topic] = rows.get(one.topic, 0) + one.rows
        size[one.topic] = size.get(one.topic, 0) + one.bytes
    skipped: dict[str, int] = {}
    for (topic, _), count in step.commit.skipped.items():
        skipped[topic] = skipped.get(topic, 0) + count
    again = " again" if step.commit.kind == RELOAD else ""
    seconds = max(step.seconds, 0.001)
    if not rows and not skipped:
        _say(f"commit {step.commit.number}: nothing new; start offsets recorded")
    for topic in sorted({*rows, *skipped}):
        bad = sum(one.rows for one in step.commit.errors if one.topic == topic)
        _say(
            f"commit {step.commit.number} {topic}: {counted(rows.get(topic, 0), 'row')}{again}, "
            f"{size.get(topic, 0) / seconds / 1e6:.1f} MB/s, lag {step.lag.get(topic, 0):,}"
            + (f", {bad:,} bad in {errors}" if bad else "")
            + (f", {counted(skipped[topic], 'offset')} skipped" if topic in skipped else "")
        )


# -- the others


def _status(given: argparse.Namespace) -> int:
    destination = destination_of(given)
    destination.require()
    newest = destination.log.newest()
    if newest is None:
        _say("nothing has been loaded yet")
        return 0
    state = destination.log.state()
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(state.written_ms / 1000))
    skipped = sum(sum(of_topic.values()) for of_topic in state.skipped.values())
    _say(
        f"{state.load}: commit {state.number} of {when} UTC, {counted(state.rows, 'row')} in "
        f"{counted(len(state.files), 'file')}"
        + (f", {counted(state.bad_rows, 'bad row')}" if state.bad_rows else "")
        + (f", {counted(skipped, 'offset')} skipped" if skipped else "")
    )
    for topic, of_topic in sorted(state.ends.items()):
        for partition, end in sorted(of_topic.items()):
            gone = state.skipped.get(topic, {}).get(partition, 0)
            _say(
                f"{topic} partition {partition}: loaded up to offset {end}"
                + (f", {counted(gone, 'offset')} skipped" if gone else "")
            )
    if given.files:
        for path in state.files:
            _say(path)
    destination.close()
    return 0


def _verify(given: argparse.Namespace) -> int:
    from kbroker.spark.load.database import Database
    from kbroker.spark.load.maintenance import verify

    destination = destination_of(given)
    destination.require()
    newest = None
    if isinstance(destination, Database):
        lines = destination.verify(deep=not given.quick)
    else:
        lines = verify(destination, deep=not given.quick)
    findings = 0
    for line in lines:
        findings += 1
        _say(line)
    if not isinstance(destination, Database):
        newest = destination.unpublished()
    if newest is not None:
        _say(
            f"commit {newest.number} is written, but readers do not see all of it yet; the "
            "current run or the next one will publish it"
        )
    state = destination.log.state()
    files = "" if given.sink == "jdbc" else f"{counted(len(state.files), 'file')}, "
    _say(f"{files}{counted(state.rows, 'row')}, {counted(findings, 'finding')}")
    destination.close()
    return EXIT_FOUND if findings else 0


def _recover(given: argparse.Namespace) -> int:
    from kbroker.spark.load.footers import recover

    made = recover(_directory(given), load_name(given))
    _say(f"a log of {counted(len(made.added), 'file')} and {counted(made.rows, 'row')}")
    for gap in made.gaps:
        _say(
            f"{gap.topic} partition {gap.partition}: no file has offsets {gap.start} to "
            f"{gap.end}; either they had no records or they are lost (--from-offsets loads them "
            "again)"
        )
    return 0


def _compact(given: argparse.Namespace) -> int:
    from kbroker.spark.load.maintenance import compact
    from kbroker.spark.load.writer import FileOptions

    destination = _directory(given, FileOptions(codec=given.codec, level=given.codec_level))
    destination.require()
    older = None
    if given.older_than_hours is not None:
        older = int((time.time() - given.older_than_hours * 3600) * 1000)
    with destination.locked():
        made = compact(
            destination,
            load_name(given),
            _runner(given),
            file_bytes=given.file_bytes,
            older_than_ms=older,
        )
    if made is None:
        _say("nothing to merge")
    else:
        merged = counted(len(made.removed), "file")
        _say(f"commit {made.number}: {merged} became {len(made.added):,}")
    return 0


def _expire(given: argparse.Namespace) -> int:
    from kbroker.spark.load.table import TableDirectory

    destination = destination_of(given)
    destination.require()
    table = destination if isinstance(destination, TableDirectory) else None
    with destination.locked():
        if (said := destination.disagreement()) is not None:
            raise LoadError(said)
        before = int((time.time() - given.days * 86_400) * 1000)
        if table is not None:
            # Files that the table does not have yet would be mistaken for replaced ones below.
            table.publish_newest()
        dropped = destination.log.expire(before)
        gone = 0 if table is None else table.vacuum(given.days)
    _say(f"{counted(dropped, 'commit')} removed from the log; their data stays")
    if table is not None:
        _say(f"{counted(gone, 'replaced file')} removed")
    return 0


if __name__ == "__main__":
    # Under spark-submit, signals are handled as by the installed command.
    from kbroker.commands import load

    sys.exit(load())
