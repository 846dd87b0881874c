"""``kbroker user``: who may log in with SASL SCRAM."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from kbroker.cli.arguments import Action, CommandFailed, Usage, add_format, printed
from kbroker.cli.connecting import add_connection, connected

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORD_VARIABLE = "KBROKER_USER_PASSWORD"
# What Kafka accepts.
ITERATIONS_MIN, ITERATIONS_MAX, ITERATIONS = 4096, 16384, 8192
# BOUND: bytes read as a password.
_PASSWORD_BYTES_MAX = 4096

_ADD_EPILOG = f"""\
The password is the first line of --password-file (- is standard input), or else the value of the
environment variable {PASSWORD_VARIABLE}, or else asked for; it is never an argument, which other
users of the machine would see. It stays here: brokers get what they need to check it.

examples:
  kbroker user add alice
  pass show kafka/alice | kbroker user add alice --password-file -"""


def _describe_add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("user", metavar="USER")
    parser.add_argument("--password-file", metavar="FILE", help="its first line; - is stdin")
    _add_mechanism(parser, "what the user may log in by; may be repeated (both)")
    parser.add_argument(
        "--iterations",
        type=_iterations,
        default=ITERATIONS,
        metavar="N",
        help=f"how much work a guess costs, {ITERATIONS_MIN} to {ITERATIONS_MAX} ({ITERATIONS})",
    )
    add_connection(parser)


def _add_mechanism(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--mechanism", action="append", choices=MECHANISMS, default=[], help=text)


def _iterations(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
    if not ITERATIONS_MIN <= number <= ITERATIONS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not between {ITERATIONS_MIN} and {ITERATIONS_MAX}"
        )
    return number


def _add(options: argparse.Namespace) -> None:
    if not options.user:
        raise Usage("the name of the user is empty")
    password = _password(options.password_file)
    mechanisms = list(dict.fromkeys(options.mechanism)) or list(MECHANISMS)
    with connected(options) as cluster:
        from kbroker.client.admin import users as admin

        admin.set_password(cluster, options.user, password, mechanisms, options.iterations)
    print(f"user {options.user} can log in by {' and '.join(mechanisms)}")


def _password(file: str | None) -> str:
    """Raises Usage."""
    if file is None and (given := os.environ.get(PASSWORD_VARIABLE)):
        return given
    if file is None and sys.stdin is not None and sys.stdin.isatty():
        return _asked()
    if file is None:
        raise Usage(
            f"where is the password? Give --password-file (- for stdin), or set {PASSWORD_VARIABLE}"
        )
    try:
        if file == "-":
            data = sys.stdin.buffer.readline(_PASSWORD_BYTES_MAX + 1)
        else:
            with open(file, "rb") as opened:
                data = opened.readline(_PASSWORD_BYTES_MAX + 1)
        password = data.decode().rstrip("\r\n")
    except OSError as error:
        raise Usage(f"--password-file {file}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise Usage(f"--password-file {file}: its first line is not UTF-8") from None
    if not password or len(data) > _PASSWORD_BYTES_MAX:
        raise Usage(
            f"--password-file {file}: a password has 1 to {_PASSWORD_BYTES_MAX} bytes, in one line"
        )
    return password


def _asked() -> str:
    import getpass

    password = getpass.getpass("Password: ")
    if not password:
        raise Usage("the password is empty")
    if getpass.getpass("Again: ") != password:
        raise Usage("the two passwords differ")
    return password


def _describe_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("user", nargs="*", metavar="USER", help="only these")
    add_format(parser)
    add_connection(parser)


def _list(options: argparse.Namespace) -> None:
    with connected(options) as cluster:
        from kbroker.client.admin import users as admin

        credentials = admin.list_credentials(cluster, options.user or None)
    rows: list[dict[str, Any]] = [dict(each._asdict()) for each in credentials]
    columns = {"user": "USER", "mechanism": "MECHANISM", "iterations": "ITERATIONS"}
    printed(options.output, columns, rows, "no user has SCRAM credentials")


def _describe_delete(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("user", nargs="+", metavar="USER")
    _add_mechanism(parser, "only this one; may be repeated (all that the user has)")
    add_connection(parser)


def _delete(options: argparse.Namespace) -> None:
    users = list(dict.fromkeys(options.user))
    with connected(options) as cluster:
        from kbroker.client.admin import users as admin

        credentials = admin.list_credentials(cluster, users)
        if options.mechanism:
            credentials = [each for each in credentials if each.mechanism in options.mechanism]
        without = [user for user in users if user not in {each.user for each in credentials}]
        if without:
            raise CommandFailed(f"user {without[0]} has no such credential; nothing was deleted")
        admin.delete_credentials(cluster, credentials)
    for each in credentials:
        print(f"user {each.user} cannot log in by {each.mechanism} anymore")


ACTIONS = {
    "add": Action("add a user, or change the password of one", _describe_add, _add, _ADD_EPILOG),
    "list": Action("list the users who have SCRAM credentials", _describe_list, _list),
    "delete": Action("delete users", _describe_delete, _delete),
}
