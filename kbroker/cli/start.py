"""``kbroker-supervisor``: read the configuration and run a broker in the foreground.

Exit codes: 0 stopped as told, 1 crashed, 2 the configuration is wrong, 3 a process could not be
started.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
from collections.abc import Sequence

from kbroker import __version__, logcontext
from kbroker.cli.arguments import Help
from kbroker.errors import EXIT_BAD_CONFIG, ConfigError

logger = logging.getLogger(__name__)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; exits with 2 when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="kbroker-supervisor",
        description="Run a kbroker message broker in the foreground. SIGTERM or Ctrl-C stops it, "
        "SIGHUP reloads its dynamic settings, SIGQUIT makes all of its processes print their "
        "stacks.",
        formatter_class=Help,
    )
    parser.add_argument("positional_config", nargs="?", metavar="FILE", help="same as --config")
    parser.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        help="a server.properties file (without one: the defaults)",
    )
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a setting of the file; may be repeated",
    )
    parser.add_argument(
        "--debug",
        default="",
        metavar="AREAS",
        help='packages or modules whose debug log to show, such as "supervisor,ipc.rpc", or "all"',
    )
    parser.add_argument(
        "--missing-begin-empty",
        action="store_true",
        help="create the partitions of a lost data directory (removed from log.dirs, or now "
        "empty) empty",
    )
    parser.add_argument(
        "--ready-line",
        action="append",
        default=[],
        metavar="TEXT",
        help="log this when all processes serve, for programs that wait for a line; may be "
        "repeated",
    )
    parser.add_argument(
        "--exit-with-parent",
        action="store_true",
        help="stop when the parent process ends; for tests",
    )
    parser.add_argument("--version", action="version", version=f"kbroker {__version__}")
    options = parser.parse_args(arguments)
    if options.config and options.positional_config:
        parser.error("the configuration file is given twice")
    options.config = options.config or options.positional_config
    options.areas = tuple(area.strip() for area in options.debug.split(",") if area.strip())
    for area in options.areas:
        if not logcontext.is_area(area):
            parser.error(f"argument --debug: no package or module {area!r} in kbroker")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    options = parse_arguments(arguments)
    logcontext.setup("supervisor", options.areas)
    # After the arguments, so that --help and --version are fast. Imports make no garbage; each
    # process enables its collector again after the fork.
    gc.disable()
    from kbroker.config.loader import PropertiesError, load, parse_overrides
    from kbroker.config.masking import masked_settings
    from kbroker.supervisor.launch import launch

    source = "--override"
    try:
        overrides = parse_overrides(options.override)
        source = options.config or source
        config, warnings = load(options.config, overrides)
        logcontext.use_format(config["log.format"])
        logger.info("kbroker %s", __version__)
        logger.info("Verifying properties")
        for name, text in masked_settings(config).items():
            logger.info("Property %s is overridden to %s", name, logcontext.Whole(text))
        for warning in warnings:
            logger.warning("%s", logcontext.Whole(warning), extra={"event": "start.warning"})
        return launch(
            config,
            options.config,
            overrides,
            options.exit_with_parent,
            options.missing_begin_empty,
            options.ready_line,
        )
    except ConfigError as error:
        print(f"kbroker-supervisor: {error}", file=sys.stderr)
    except PropertiesError as error:
        print(f"kbroker-supervisor: {source}: {error}", file=sys.stderr)
    except OSError as error:
        if options.config is None or error.filename != options.config:
            raise
        print(f"kbroker-supervisor: {options.config}: {error.strerror}", file=sys.stderr)
    finally:
        gc.enable()
    return EXIT_BAD_CONFIG


if __name__ == "__main__":
    sys.exit(main())
