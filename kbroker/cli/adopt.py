"""``kbroker-adopt``: open the data directories of an Apache Kafka here, or give them back.

Exit codes: 0 done, or nothing to do; 1 the directories cannot be taken as they are, and nothing was
changed; 2 wrong usage; 3 --back-to was begun and not finished: running the same command again does
the rest.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from kbroker import __version__

EXIT_OK, EXIT_REFUSED, EXIT_USAGE, EXIT_UNFINISHED = 0, 1, 2, 3

_DESCRIPTION = """\
Take over the data directories of an Apache Kafka broker (2.x with ZooKeeper, 3.x with KRaft).

Kafka keeps topics in its data directories (log.dirs) and their metadata in ZooKeeper or in
__cluster_metadata. This command registers the topics with their ids and settings in kbroker's own
metadata store, one new file in the first directory. Kafka's files are not changed. Stop Kafka
first. The command shows its plan before it changes anything."""

_EPILOG = """\
examples:
  kbroker-adopt --log-dirs /var/lib/kafka --dry-run        show the plan
  kbroker-adopt --log-dirs /disk1/kafka,/disk2/kafka       carry it out
  kbroker-adopt -c server.properties                       log.dirs and broker.id from a file
  kbroker-adopt --log-dirs DIR --back-to kafka-3.9         the way back: prepare DIR for Kafka

exit codes: 0 done or nothing to do, 1 refused and nothing changed, 2 usage error,
            3 begun but not finished (--back-to): run it again
docs/migration.md describes every step, in both directions."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kbroker-adopt",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--log-dirs", metavar="DIR[,DIR...]", help="all data directories of the broker"
    )
    parser.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        help="a server.properties of Kafka or kbroker that names the directories",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the plan, change nothing")
    parser.add_argument(
        "--metadata-log-dir",
        metavar="DIR",
        help="where __cluster_metadata-0 is, if not in a data directory (Kafka's metadata.log.dir)",
    )
    parser.add_argument(
        "--missing-begin-empty",
        action="store_true",
        help="create partitions that none of the directories has empty, instead of refusing",
    )
    parser.add_argument(
        "--without-remote-records",
        action="store_true",
        help="leave behind records that Kafka moved to remote storage, instead of refusing",
    )
    settings = parser.add_mutually_exclusive_group()
    settings.add_argument(
        "--without-metadata",
        action="store_true",
        help="take the topics over without their settings when __cluster_metadata-0 is lost",
    )
    parser.add_argument(
        "--back-to",
        choices=("kafka-3.9", "kafka-2.7"),
        help="the way back: prepare kbroker's directories for that Kafka, in KRaft mode (3.9) or "
        "with ZooKeeper (2.7)",
    )
    settings.add_argument(
        "--zookeeper",
        metavar="HOST:PORT[/PATH]",
        help="the ZooKeeper of Kafka 2.x (zookeeper.connect) that holds the topics' settings; "
        "--back-to kafka-2.7 writes the topics there",
    )
    parser.add_argument("--version", action="version", version=f"kbroker {__version__}")
    return parser


class _Lines:
    """Progress on stderr, one line that is overwritten; only on a terminal."""

    def __init__(self) -> None:
        self._shown = False
        self._on = sys.stderr.isatty()

    def progress(self, text: str) -> None:
        if self._on:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = False

    def say(self, text: str) -> None:
        self.clear()
        print(text, flush=True)


def _run(options: argparse.Namespace, lines: _Lines) -> None:
    from kbroker.adopt.adoption import adopt
    from kbroker.adopt.source import source_of

    _check_together(options)
    source = source_of(options.config, options.log_dirs, options.metadata_log_dir)
    if options.back_to:
        from kbroker.adopt.release import release

        release(
            source.log_dirs,
            options.back_to,
            lines.say,
            dry_run=options.dry_run,
            zookeeper=options.zookeeper,
            metadata_log_dir=source.metadata_log_dir,
            missing_begin_empty=options.missing_begin_empty,
        )
        return
    adopt(
        source.log_dirs,
        lines.say,
        lines.progress,
        dry_run=options.dry_run,
        broker_id=source.broker_id,
        metadata_log_dir=source.metadata_log_dir,
        zookeeper=options.zookeeper,
        without_metadata=options.without_metadata,
        without_remote_records=options.without_remote_records,
        missing_begin_empty=options.missing_begin_empty,
    )


def _check_together(options: argparse.Namespace) -> None:
    """Raises MissingArgument for options that would have no effect."""
    from kbroker.adopt.errors import MissingArgument

    if options.back_to and (options.without_metadata or options.without_remote_records):
        name = "--without-metadata" if options.without_metadata else "--without-remote-records"
        raise MissingArgument(f"{name} does not apply to --back-to; leave it out")
    if options.back_to == "kafka-3.9" and options.zookeeper:
        raise MissingArgument("--zookeeper does not apply to --back-to kafka-3.9; leave it out")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    from kbroker.adopt.errors import MissingArgument, Refusal, Unfinished

    lines = _Lines()
    try:
        _run(options, lines)
        return EXIT_OK
    except MissingArgument as error:
        lines.clear()
        print(f"kbroker-adopt: {error}", file=sys.stderr)
        return EXIT_USAGE
    except Refusal as error:
        lines.clear()
        print(f"kbroker-adopt: {error}\nkbroker-adopt: nothing was changed", file=sys.stderr)
        return EXIT_REFUSED
    except Unfinished as error:
        lines.clear()
        text = "begun but not finished; run the same command again before you start a broker"
        print(f"kbroker-adopt: {error}\nkbroker-adopt: {text}", file=sys.stderr)
        return EXIT_UNFINISHED
    except OSError as error:
        lines.clear()
        print(f"kbroker-adopt: {error}\nkbroker-adopt: nothing was changed", file=sys.stderr)
        return EXIT_REFUSED
    except KeyboardInterrupt:
        lines.clear()
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
