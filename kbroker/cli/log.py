"""``kbroker-log``: inspect, check and repair log files while no broker uses them.

Exit codes: 0 nothing is wrong, 1 damage was found, 2 wrong usage or the command was refused.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from kbroker import __version__
from kbroker.logtool import targets
from kbroker.logtool.output import Output, ScanProgress
from kbroker.logtool.targets import UsageError

EXIT_OK, EXIT_DAMAGE, EXIT_USAGE = 0, 1, 2
INDEX_INTERVAL_BYTES = 4096

_DESCRIPTION = """\
Inspect, verify and repair the files in which kbroker and Apache Kafka keep their topics.
A broker keeps each partition in a directory <topic>-<partition> of a log directory (log.dirs)."""

_EPILOG = """\
examples:
  kbroker-log verify /var/lib/kbroker                  check everything; each log is read once
  kbroker-log dump /var/lib/kbroker/orders-0           batches and indexes of one partition
  kbroker-log dump --print-data-log .../00000000000000000000.log     records with their contents
  kbroker-log dump --json FILE | jq .                  one JSON object per line
  kbroker-log rebuild /var/lib/kbroker/orders-0        new indexes; stop the broker first

exit codes: 0 no damage, 1 damage found, 2 usage error (or a broker is running)"""


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kbroker {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a file, a partition directory or a log directory",
    )
    common.add_argument("--json", action="store_true", help="print one JSON object per line")
    common.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="show progress on stderr; the default on a terminal",
    )
    _add_dump(commands, common)
    verify = commands.add_parser(
        "verify",
        parents=[common],
        help="check files against each other; change nothing",
        description="Check the checksum and offset of every batch, every index entry against its "
        "batch, aborted transactions against their markers, producer snapshots and checkpoints. "
        "Nothing is changed. Given one file of a segment, it checks the whole segment.",
    )
    verify.add_argument(
        "--compacted",
        action="store_true",
        help="the topic is compacted, so gaps between offsets are expected; not needed for a "
        "partition that cleaner-offset-checkpoint names",
    )
    verify.add_argument(
        "--verbose",
        action="store_true",
        help="also print a line for each empty partition of a log directory",
    )
    rebuild = commands.add_parser(
        "rebuild",
        parents=[common],
        help="rebuild the indexes from the log",
        description="Rebuild .index, .timeindex and .txnindex from the .log. The broker that uses "
        "the log directory must be stopped. A segment whose log is damaged keeps its indexes. "
        "Given one file of a segment, it rebuilds all indexes of that segment.",
    )
    rebuild.add_argument(
        "--index-interval-bytes",
        type=int,
        default=INDEX_INTERVAL_BYTES,
        metavar="BYTES",
        help="log bytes between two index entries, like index.interval.bytes (default: "
        "%(default)s)",
    )
    return parser


def _add_dump(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    dump = commands.add_parser(
        "dump",
        parents=[common],
        help="show the contents of files",
        description="Show batches (.log), entries (.index, .timeindex, .txnindex), producers "
        "(.snapshot), checkpoints, leader epochs and partition.metadata.",
    )
    dump.add_argument("--deep-iteration", action="store_true", help="also show every record")
    dump.add_argument(
        "--print-data-log",
        action="store_true",
        help="show records with their keys, values and headers",
    )
    decoder = dump.add_mutually_exclusive_group()
    decoder.add_argument(
        "--offsets-decoder",
        action="store_true",
        help="decode the records of __consumer_offsets: groups and committed offsets",
    )
    decoder.add_argument(
        "--transaction-log-decoder",
        action="store_true",
        help="decode the records of __transaction_state",
    )


def _dump(arguments: argparse.Namespace, out: Output) -> None:
    from kbroker.coordinator.records import offsets_topic, transaction_topic
    from kbroker.logtool.dump import dump
    from kbroker.logtool.dump_log import DumpOptions

    decoder = None
    if arguments.offsets_decoder:
        decoder = offsets_topic.RECORDS
    elif arguments.transaction_log_decoder:
        decoder = transaction_topic.RECORDS
    options = DumpOptions(
        records=arguments.deep_iteration, data=arguments.print_data_log, decoder=decoder
    )
    dump(arguments.paths, options, out)


def _run(options: argparse.Namespace, out: Output) -> None:
    if options.command == "rebuild":
        from kbroker.logtool.rebuild import rebuild

        if options.index_interval_bytes < 0:
            raise UsageError("--index-interval-bytes must be 0 or more")
        rebuild(options.paths, out, index_interval_bytes=options.index_interval_bytes)
        return
    from kbroker.logtool.rebuild import in_use

    for log_dir in sorted({targets.log_dir_of(path) for path in options.paths}):
        if in_use(log_dir):
            text = "a broker is using this directory; data that it is writing may look damaged"
            print(f"kbroker-log: {log_dir}: {text}", file=sys.stderr)
    if options.command == "dump":
        _dump(options, out)
        return
    from kbroker.logtool.verify_dir import verify

    verify(options.paths, out, compacted=options.compacted, verbose=options.verbose)


def main(arguments: Sequence[str] | None = None, prog: str = "kbroker-log") -> int:
    """The command, under the name ``prog``; returns its exit code."""
    options = _parser(prog).parse_args(arguments)
    options.paths = [os.path.abspath(path) for path in options.paths]
    out = Output(options.json, ScanProgress(options.progress))
    try:
        _run(options, out)
    except UsageError as error:
        print(f"kbroker-log: {error}", file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"kbroker-log: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        out.progress.clear()
    return EXIT_DAMAGE if out.damage_count else EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
