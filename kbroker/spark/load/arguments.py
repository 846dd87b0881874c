"""The arguments of ``kbroker-load`` and their help texts."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime

from kbroker.properties import PropertiesError, read_properties
from kbroker.quantities import size_bytes
from kbroker.spark.options.kafka_settings import doubt, wrong_value

_ABOUT = """\
Load topics of a Kafka cluster (kbroker or Apache Kafka) into Parquet files, a table (Delta,
Iceberg) or a database. Every record arrives exactly once, even if a load is killed and restarted:
the offsets are written together with the data, and the next run continues from there.

  kbroker-load run --bootstrap localhost:9092 --topics clicks --dest /data/lake
  kbroker-load status --dest /data/lake

Run it once, from cron, or with --follow continuously. It starts its own Spark on this machine;
under spark-submit it uses the cluster's."""

_RUN_ABOUT = """\
Load what is new since the last run, then exit; with --follow, keep running. The first run begins
at the start of each topic. Only one run at a time may use a destination."""

_BYTES_INSTEAD = "keys and values are bytes; write --value-format json for fields of values"
_SETTING_INSTEAD = {
    "bootstrap.servers": "write --bootstrap",
    "isolation.level": "write --isolation read_committed or read_uncommitted",
    "group.id": "write --group",
    "auto.offset.reset": "write --from-timestamp or --from-offsets; a load continues where it "
    "ended",
    "enable.auto.commit": "leave it out; offsets are committed for --group with each commit",
    "key.deserializer": _BYTES_INSTEAD,
    "value.deserializer": _BYTES_INSTEAD,
    "interceptor.classes": "leave it out; transform the rows where they are loaded",
}

_OF_FILES = {"partition_by": "hour", "codec": "zstd", "codec_level": None, "file_bytes": 128 << 20}
_TABLE = "records"

# A number with this many digits is in milliseconds: 1973 to 5138. With fewer it would be in 1970,
# so seconds are meant; with more, microseconds. Eight digits are a date, as in ISO 8601.
_TIME_DIGITS = range(12, 15)
_DATE_DIGITS = 8

# BOUND: an id is at most 32767 bytes on the wire; a job's name, a topic's and a number go into one.
_NAME_BYTES_MAX = 32_000


def size_of(text: str) -> int:
    """``512m`` in bytes."""
    size = size_bytes(text)
    if size is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 512m or 4g")
    return size


def count_of(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def minutes_of(text: str) -> float:
    """A number above 0."""
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0
    if not 0 < minutes < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return minutes


def time_of(text: str) -> int:
    """Milliseconds since 1970, from a number or a date; a date without a zone is UTC. Earlier times
    become 1970: to brokers, negative timestamps are symbolic (-1 is the end).
    """
    if text == "0" or (text.isdecimal() and len(text) in _TIME_DIGITS):
        return int(text)
    try:
        if text.isdecimal() and len(text) != _DATE_DIGITS:
            raise ValueError(text)  # fromisoformat lets any character be between date and time
        time = datetime.fromisoformat(text)
    except ValueError as err:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time; write 2026-11-21T06:00:00Z or milliseconds since 1970, which "
            "are 13 digits"
        ) from err
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return max(0, int(time.timestamp() * 1000))


def offsets_of(text: str) -> dict[tuple[str, int], int]:
    """``{"clicks": {"0": 120}}`` by topic and partition."""
    try:
        offsets = {
            (str(topic), int(partition)): _whole(offset)
            for topic, partitions in json.loads(text).items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError, TypeError) as err:
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a set of offsets; write \'{{"clicks": {{"0": 120, "1": 80}}}}\''
        ) from err
    if any(offset < 0 for offset in offsets.values()):
        raise argparse.ArgumentTypeError("offsets start at 0")
    return offsets


def _whole(offset: object) -> int:
    if isinstance(offset, bool) or not isinstance(offset, int | str):
        raise ValueError(f"{offset!r} is not an offset")
    return int(offset)


def level_of(text: str) -> int:
    """A compression level of zstd."""
    if not text.isdecimal() or not 1 <= int(text) <= 22:
        raise argparse.ArgumentTypeError(f"{text!r} is not a level; write 1 (fast) to 22 (small)")
    return int(text)


def master_of(text: str) -> str:
    """A master that Spark knows, or ``none``."""
    if re.fullmatch(r"none|local(\[.+\])?|yarn|(spark|k8s|local-cluster).+", text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a Spark master; write local[4], spark://HOST:7077, yarn, "
            "k8s://HOST:PORT, or none for this process"
        )
    return text


def pattern_of(text: str) -> str:
    """A regular expression."""
    try:
        re.compile(text)
    except re.error as err:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {err}") from err
    return text


def setting_of(text: str) -> tuple[str, str]:
    """``security.protocol=SSL`` as a pair; a ``kafka.`` before it may stay."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return _setting(name, value)


def settings_of(path: str) -> list[tuple[str, str]]:
    """The pairs of a file of client settings, as Kafka's tools take it."""
    try:
        settings = read_properties(path)
    except (OSError, PropertiesError) as err:
        raise argparse.ArgumentTypeError(f"{path!r} cannot be read: {err}") from err
    return [_setting(name, value) for name, value in settings]


def _setting(name: str, value: str) -> tuple[str, str]:
    bare = name.strip().removeprefix("kafka.")
    if (wrong := wrong_value(bare, value)) is not None:
        raise argparse.ArgumentTypeError(wrong)
    return bare, value


def add_settings(
    arguments: argparse._ActionsContainer, of: str = "client", whose: str = "the client"
) -> None:
    """``--OF-setting`` and ``--OF-config``, whose pairs are ``OF_setting``; the last value of a
    name counts.
    """
    arguments.add_argument(
        f"--{of}-setting",
        action="append",
        type=setting_of,
        default=[],
        metavar="NAME=VALUE",
        help=f"a setting of {whose} under Kafka's name, such as security.protocol=SASL_SSL; may be "
        "repeated",
    )
    arguments.add_argument(
        f"--{of}-config",
        dest=f"{of}_setting",
        action="extend",
        type=settings_of,
        default=[],
        metavar="FILE",
        help=f"a properties file with settings of {whose}; use it for passwords, because all users "
        "of this machine can see a command's arguments",
    )


def refuse_uncommitted(
    parser: argparse.ArgumentParser, option: str, settings: Iterable[tuple[str, str]]
) -> None:
    """Exits with 2 if a command that counts committed records is given another isolation level."""
    if any(name == "isolation.level" and value != "read_committed" for name, value in settings):
        parser.error(
            f"{option} isolation.level has no effect, because committed records are counted; "
            "leave it out"
        )


def tell_doubts(program: str, settings: Iterable[tuple[str, str]]) -> None:
    """A line on standard error for each setting that no client knows."""
    for name, _ in settings:
        if (said := doubt(name)) is not None:
            print(f"{program}: {said}", file=sys.stderr, flush=True)


def tell_no_match(program: str, given: argparse.Namespace, bootstrap: str, follow: bool) -> None:
    """A line on standard error if a pattern matches no topic yet; raises LoadError for a run that
    does not wait for one.
    """
    from kbroker.spark.load.commits import LoadError

    said = f"no topic at {bootstrap} has a name that fully matches {given.pattern}"
    if not follow:
        raise LoadError(said)
    print(f"{program}: {said}; waiting for one", file=sys.stderr, flush=True)


def place_of(text: str) -> str:
    """The destination; an empty shell variable means none, not the current folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty: give a folder or a database")
    return text


def id_of(text: str) -> str:
    """A name from which group and transactional ids are derived."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as err:
        raise argparse.ArgumentTypeError("it is not UTF-8") from err
    if size > _NAME_BYTES_MAX:
        raise argparse.ArgumentTypeError(
            f"it has {size:,} bytes, but at most {_NAME_BYTES_MAX:,} are allowed, because groups"
            " are named after it"
        )
    return text


def name_of(text: str) -> str:
    """The name of the job; an empty shell variable means no name."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty")
    return id_of(text)


def names_of(text: str) -> list[str]:
    """``a,b`` as names."""
    names = [one.strip() for one in text.split(",") if one.strip()]
    if not names:
        raise argparse.ArgumentTypeError("give at least one topic")
    return names


def build_parser(version: str) -> argparse.ArgumentParser:
    """The parser with all commands."""
    parser = argparse.ArgumentParser(
        prog="kbroker-load",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="See kbroker-load COMMAND --help, and docs/load.md for examples.",
    )
    parser.add_argument("--version", action="version", version=f"kbroker {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run", help="load what is new", description=_RUN_ABOUT, allow_abbrev=False
    )
    _add_source(run)
    _add_destination(run).add_argument(
        "--partition-by",
        choices=("hour", "day", "none"),
        help="a folder for each hour (default) or day of the records' timestamps, in UTC",
    )
    _add_again(run)
    _add_limits(run)
    _add_values(run)
    status = commands.add_parser("status", help="show what is loaded, and up to which offsets")
    _add_destination(status, writes=False)
    status.add_argument("--files", action="store_true", help="also list every file that is in use")
    verify = commands.add_parser(
        "verify",
        help="read every file and compare it with the log of commits; exit code 3 if they differ",
    )
    _add_destination(verify, writes=False)
    verify.add_argument(
        "--quick",
        action="store_true",
        help="compare only sizes and checksums, without reading offsets",
    )
    recover = commands.add_parser(
        "recover", help="rebuild a lost log of commits from the data files"
    )
    _add_destination(recover, writes=False)
    compact = commands.add_parser("compact", help="merge the small files of each hour")
    _add_destination(compact)
    # Rejected with a message in ``check_together``.
    compact.add_argument("--partition-by", default=None, help=argparse.SUPPRESS)
    compact.add_argument("--master", type=master_of, metavar="URL", help="as for run")
    compact.add_argument(
        "--older-than-hours",
        type=minutes_of,
        metavar="N",
        help="skip files with records younger than this",
    )
    expire = commands.add_parser("expire", help="remove old commits from the log; their data stays")
    _add_destination(expire, writes=False)
    expire.add_argument(
        "--days", type=minutes_of, default=30.0, help="keep commits of this many days (30)"
    )
    return parser


def add_bootstrap(parser: argparse._ActionsContainer) -> None:
    """Also under the name it has in Kafka's own tools."""
    parser.add_argument(
        "--bootstrap",
        "--bootstrap-server",
        required=True,
        metavar="HOST:PORT",
        help="bootstrap servers",
    )


def add_topics(arguments: argparse._ActionsContainer) -> None:
    """Which topics the command is about: ``topics`` or ``pattern``."""
    topics = arguments.add_mutually_exclusive_group(required=True)
    topics.add_argument(
        "--topics", type=names_of, default=[], metavar="A,B", help="names of topics"
    )
    topics.add_argument(
        "--pattern", type=pattern_of, metavar="REGEX", help="all topics whose name fully matches"
    )


def _add_source(run: argparse.ArgumentParser) -> None:
    group = run.add_argument_group("what to load")
    add_bootstrap(group)
    add_topics(group)
    add_settings(group)
    group.add_argument(
        "--isolation",
        choices=("read_committed", "read_uncommitted"),
        default="read_committed",
        help="read_committed leaves out records of aborted transactions (read_committed)",
    )
    group.add_argument(
        "--no-headers", dest="headers", action="store_false", help="write no column for headers"
    )


def _add_destination(
    parser: argparse.ArgumentParser, *, writes: bool = True
) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("where to")
    group.add_argument(
        "--dest",
        required=True,
        type=place_of,
        metavar="PLACE",
        help="a folder; for --sink jdbc sqlite:PATH or postgresql://USER:PASSWORD@HOST:PORT/DB",
    )
    group.add_argument(
        "--sink",
        choices=("dir", "delta", "iceberg", "jdbc"),
        default="dir",
        help="Parquet files (dir), a Delta or Iceberg table, a table of a database (jdbc)",
    )
    group.add_argument("--table", default=_TABLE, help="table of --sink jdbc (records)")
    group.add_argument(
        "--name",
        type=id_of,
        help="name of the load, used for its group and for loads that share a database (load)",
    )
    group.set_defaults(bucket_ms=600_000, **_OF_FILES)
    if not writes:
        return group
    group.add_argument(
        "--codec",
        choices=("zstd", "snappy", "gzip", "lz4", "none"),
        help="compression of the files (zstd)",
    )
    group.add_argument(
        "--codec-level",
        type=level_of,
        metavar="N",
        help="zstd level (1, or a faster one where the result is hardly larger)",
    )
    group.add_argument(
        "--file-bytes", type=size_of, metavar="SIZE", help="start another file at this size (128m)"
    )
    return group


def _add_again(run: argparse.ArgumentParser) -> None:
    group = run.add_argument_group("where to begin, initially or again")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--from-timestamp",
        type=time_of,
        metavar="TIME",
        help="begin at records of this time: where the first run begins; a destination that "
        "already has them loads them again and replaces what is there",
    )
    which.add_argument(
        "--from-offsets",
        type=offsets_of,
        metavar="JSON",
        help='the same by offset: \'{"clicks": {"0": 120}}\'',
    )
    which.add_argument(
        "--from-commit",
        type=count_of,
        metavar="N",
        help="reload what came after commit N (status shows the newest)",
    )
    group.add_argument(
        "--allow-data-loss",
        action="store_true",
        help="continue when records were deleted before they were loaded, or a topic was deleted "
        "and recreated; otherwise that is an error",
    )


def _add_limits(run: argparse.ArgumentParser) -> None:
    group = run.add_argument_group("how much and how long")
    group.add_argument(
        "--max-records", type=count_of, metavar="N", help="stop after about this many records"
    )
    group.add_argument(
        "--max-bytes",
        type=size_of,
        metavar="SIZE",
        help="stop after about this many bytes, such as 50g",
    )
    group.add_argument(
        "--max-minutes", type=minutes_of, metavar="N", help="start nothing new after this time"
    )
    group.add_argument(
        "--follow", action="store_true", help="keep running: load new records as they arrive"
    )
    group.add_argument(
        "--follow-seconds",
        type=minutes_of,
        metavar="N",
        help="with --follow: minimum time between commits, for fewer and larger files (10)",
    )
    group.add_argument(
        "--commit-bytes",
        type=size_of,
        default=4 << 30,
        metavar="SIZE",
        help="commit a long load whenever it has read this much (4g)",
    )
    group.add_argument(
        "--split",
        choices=("bytes", "partition"),
        default="bytes",
        help="one task per so many bytes (default), or one per partition",
    )
    group.add_argument(
        "--group",
        type=id_of,
        metavar="NAME",
        help="commit offsets for this group, for tools that show lag (kbroker-load.NAME); '' for "
        "none",
    )
    group.add_argument(
        "--master",
        type=master_of,
        metavar="URL",
        help="the Spark master to use, such as local[4]; 'none' loads in this process, without "
        "Spark or Java",
    )
    group.add_argument("--quiet", action="store_true", help="do not print a line per commit")


def _add_values(run: argparse.ArgumentParser) -> None:
    group = run.add_argument_group("values")
    group.add_argument(
        "--value-format",
        choices=("raw", "json"),
        default="raw",
        help="raw: bytes as they are. json: fields by --value-schema; a value that does not match "
        "is set aside (_kbroker/errors/, or the table ..._errors) and counted",
    )
    group.add_argument(
        "--value-schema",
        metavar="FIELDS",
        help="fields of a JSON value, such as 'id long, name string, tags array<string>'",
    )
    group.add_argument(
        "--fail-on-error",
        action="store_true",
        help="on a bad value, load nothing of that commit and stop",
    )


def check_together(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Check combinations of arguments; exits with 2."""
    if given.command == "run":
        _check_run(parser, given)
    if given.command == "compact" and given.partition_by is not None:
        parser.error(
            "--partition-by is only for run, because compact leaves records in their folders. "
            "Leave it out; for other folders, load into another --dest"
        )
    if given.codec_level is not None and given.codec != "zstd":
        parser.error(
            f"--codec-level is for --codec zstd, and {given.codec} has none here; leave one out"
        )


def _check_run(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    if given.follow_seconds is not None and not given.follow:
        parser.error("--follow-seconds is only for --follow; leave it out")
    if given.value_format == "json" and not given.value_schema:
        parser.error("--value-format json needs --value-schema 'name type, ...'")
    if given.value_format == "raw" and (given.value_schema or given.fail_on_error):
        parser.error("--value-schema and --fail-on-error are only for --value-format json")
    if given.value_schema:
        from kbroker.spark.load.commits import LoadError
        from kbroker.spark.load.fields import schema_of

        try:
            schema_of(given.value_schema)
        except LoadError as err:
            parser.error(str(err))
    for name, _ in given.client_setting:
        if name in _SETTING_INSTEAD:
            parser.error(f"--client-setting {name} is not supported: {_SETTING_INSTEAD[name]}")
    if given.sink == "jdbc":
        for name, default in _OF_FILES.items():
            if getattr(given, name) != default:
                parser.error(f"--{name.replace('_', '-')} is only for files; leave it out")
    elif given.table != _TABLE:
        parser.error("--table is only for --sink jdbc; leave it out")
