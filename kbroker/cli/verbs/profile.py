"""``kbroker profile``: settings for each of several clusters."""

from __future__ import annotations

import argparse

from kbroker.cli import profiles
from kbroker.cli.arguments import (
    Action,
    CommandFailed,
    Usage,
    add_format,
    printed,
    printed_document,
    table_text,
)
from kbroker.cli.connecting import check_name, read_settings

_COLUMNS = {"profile": "PROFILE", "current": "CURRENT", "brokers": "BROKERS", "problem": "PROBLEM"}
_SETTING_COLUMNS = {"name": "SETTING", "value": "VALUE"}
_BROKERS = "bootstrap.servers"
_EPILOG = """\
Settings are those of a client, as in --command-config. A profile is a file in
~/.config/kbroker/profiles that only you may read; passwords are in it as they are, and not shown.
A command takes --profile, or else KBROKER_PROFILE, or else the profile in use.

examples:
  kbroker profile create prod -b broker1:9093 security.protocol=SASL_SSL sasl.mechanism=PLAIN
  kbroker profile create test --from-file client.properties
  kbroker profile set prod sasl.username=alice
  kbroker profile use prod
  kbroker topic list --profile test"""


def _describe_create(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profile", metavar="NAME")
    parser.add_argument("setting", nargs="*", metavar="SETTING=VALUE")
    parser.add_argument("-b", "--bootstrap-server", metavar="HOST:PORT[,...]", help="its brokers")
    parser.add_argument(
        "--from-file", metavar="FILE", help="begin with what this properties file has"
    )


def _create(options: argparse.Namespace) -> None:
    path = profiles.path_of(options.profile)
    if options.profile in profiles.names():
        raise CommandFailed(f"profile {options.profile} exists: kbroker profile set changes it")
    settings = (
        read_settings(options.from_file, f"--from-file {options.from_file}")
        if (options.from_file)
        else {}
    )
    settings |= _pairs(options.setting)
    if options.bootstrap_server:
        settings[_BROKERS] = options.bootstrap_server
    if not settings.get(_BROKERS):
        raise Usage("which brokers? Give -b HOST:PORT")
    profiles.write(options.profile, settings)
    first = len(profiles.names()) == 1 and profiles.current() is None
    if first:
        profiles.use(options.profile)
    print(
        f"created profile {options.profile} in {path}" + (", which is in use now" if first else "")
    )


def _pairs(given: list[str]) -> dict[str, str]:
    """Raises Usage."""
    settings = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Usage(f"{text!r}: write SETTING=VALUE")
        check_name("profile", name)
        settings[name] = value
    return settings


def _describe_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profile", metavar="PROFILE")
    parser.add_argument("setting", nargs="*", metavar="SETTING=VALUE")
    parser.add_argument(
        "--unset", action="append", default=[], metavar="SETTING",
        help="a setting that it does not have any more; may be repeated",
    )  # fmt: skip


def _set(options: argparse.Namespace) -> None:
    changes = _pairs(options.setting)
    if not changes and not options.unset:
        raise Usage("nothing to set: write SETTING=VALUE, or --unset SETTING")
    settings = profiles.read(options.profile)
    for name in options.unset:
        if name not in settings:
            raise CommandFailed(f"profile {options.profile} has no {name}")
        del settings[name]
    profiles.write(options.profile, settings | changes)
    print(f"changed profile {options.profile}: {', '.join(sorted([*changes, *options.unset]))}")


def _describe_use(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profile", nargs="?", metavar="PROFILE")
    parser.add_argument("--none", action="store_true", help="use no profile any more")


def _use(options: argparse.Namespace) -> None:
    if options.none == (options.profile is not None):
        raise Usage("which profile? Name one, or give --none")
    profiles.use(options.profile)
    print(f"profile {options.profile} is in use" if options.profile else "no profile is in use")


def _describe_list(parser: argparse.ArgumentParser) -> None:
    add_format(parser)


def _list(options: argparse.Namespace) -> None:
    used = profiles.current()
    rows = []
    for name in profiles.names():
        problem, brokers = None, None
        try:
            brokers = profiles.read(name).get(_BROKERS)
        except Usage as error:
            problem = str(error)
        current = name == used
        row = {"profile": name, "current": current, "brokers": brokers, "problem": problem}
        if options.output == "table":
            row["current"] = "yes" if current else None
        rows.append(row)
    printed(options.output, _COLUMNS, rows, "no profiles: kbroker profile create makes one")


def _describe_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profile", nargs="?", metavar="PROFILE", help="(the one that is in use)")
    add_format(parser)


def _show(options: argparse.Namespace) -> None:
    name = options.profile or profiles.current()
    if name is None:
        raise Usage("which profile? None is in use")
    settings = {key: profiles.shown_value(key, value) for key, value in profiles.read(name).items()}
    if options.output != "table":
        printed_document(options.output, {"profile": name, "settings": settings})
        return
    rows = [{"name": key, "value": value} for key, value in settings.items()]
    print(f"profile {name}\n{table_text(_SETTING_COLUMNS, rows)}")


def _describe_delete(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profile", metavar="PROFILE")


def _delete(options: argparse.Namespace) -> None:
    profiles.delete(options.profile)
    print(f"deleted profile {options.profile}")


ACTIONS = {
    "list": Action("list profiles", _describe_list, _list),
    "create": Action("make a profile", _describe_create, _create, _EPILOG),
    "show": Action("show the settings of a profile, without passwords", _describe_show, _show),
    "set": Action("change settings of a profile", _describe_set, _set, _EPILOG),
    "use": Action("choose the profile that commands use", _describe_use, _use),
    "delete": Action("delete a profile", _describe_delete, _delete),
}
