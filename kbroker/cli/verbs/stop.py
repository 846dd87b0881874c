"""``kbroker stop``: ends the broker on this machine, and waits until it has ended."""

from __future__ import annotations

import argparse
import os
import signal

from kbroker.cli.arguments import Action, CommandFailed, seconds_from
from kbroker.cli.verbs.top import add_choice
from kbroker.descriptors import readable

_EPILOG = """\
The same as SIGTERM or Ctrl-C: the broker writes what it has to disk, in a cluster it hands over
what it leads, and its next start needs no recovery. It may be of another version of kbroker. A
service manager may start it again: use its own command then.

examples:
  kbroker stop
  kbroker stop --address localhost:9093
  kbroker stop --pid 4711 --wait 300"""


def _describe(parser: argparse.ArgumentParser) -> None:
    add_choice(parser)
    parser.add_argument(
        "--wait", type=seconds_from(0, 86_400), default=60.0, metavar="SECONDS",
        help="how long to wait for its end (60)",
    )  # fmt: skip


def _stop(options: argparse.Namespace) -> None:
    from kbroker.cli.local.choice import chosen_run

    run = chosen_run(options)
    pid = run.pid
    try:
        # The number may become another process's, the descriptor does not.
        process = os.pidfd_open(pid)
    except OSError as error:
        raise CommandFailed(f"process {pid}: {error.strerror}") from error
    try:
        if not run.is_of_process():
            raise CommandFailed(
                f"the broker {pid} is another user's, runs in another container, or ended"
            )
        signal.pidfd_send_signal(process, signal.SIGTERM)
        if not readable([process], options.wait):
            raise CommandFailed(
                f"the broker {pid} has not ended within {options.wait:g} s; its log says what it "
                "waits for"
            )
    except OSError as error:
        raise CommandFailed(f"process {pid}: {error.strerror}") from error
    finally:
        os.close(process)
    print(f"the broker {pid} has ended")


ACTION = Action("end the broker on this machine", _describe, _stop, _EPILOG)
