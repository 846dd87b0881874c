"""``kafka-features``: what features brokers support, and which are in effect."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping

from kbroker.cli.kafka.metadata_versions import (
    LATEST,
    LEAST,
    METADATA_VERSION,
    NAMES,
    defaults,
    level_of,
    needs,
    shown,
)
from kbroker.cli.kafka.parsers import ParsedTool, ToolParser
from kbroker.cli.kafka.running import ToolFailed, connected

_SHORT_MAX = (1 << 15) - 1


def _build() -> ToolParser:
    parser = ToolParser(
        prog="kafka-features", description="Features: what is supported, and what is in effect."
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--bootstrap-server", help="brokers")
    where.add_argument("--bootstrap-controller", help="refused: brokers take all requests")
    parser.add_argument("--command-config", help="a file with client settings")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("describe", help="print the features")
    for name, text in (("upgrade", "raise levels"), ("downgrade", "lower levels")):
        change = commands.add_parser(name, help=text)
        change.add_argument("--metadata", help="the level of metadata.version, as 3.3-IV3")
        change.add_argument("--release-version", help="a release: all of its features")
        change.add_argument("--feature", action="append", help="as group.version=1; repeatable")
        if name == "downgrade":
            change.add_argument("--unsafe", action="store_true", help="even if metadata is lost")
        change.add_argument("--dry-run", action="store_true", help="only check whether it could")
    disable = commands.add_parser("disable", help="set levels to 0")
    disable.add_argument("--feature", action="append", help="a feature; repeatable")
    disable.add_argument("--unsafe", action="store_true", help="even if metadata is lost")
    disable.add_argument("--dry-run", action="store_true", help="only check whether it could")
    mapping = commands.add_parser("version-mapping", help="print the features of a release")
    mapping.add_argument("--release-version", help=f"a metadata version (default: {LATEST})")
    depends = commands.add_parser("feature-dependencies", help="print what features need")
    depends.add_argument("--feature", action="append", required=True, help="as group.version=1")
    return parser


def _run(given: Namespace) -> None:
    if given.command == "version-mapping":
        _print_mapping(given.release_version or LATEST)
        return
    if given.command == "feature-dependencies":
        _print_needs(given.feature)
        return
    if given.bootstrap_server is None and given.bootstrap_controller is None:
        raise ToolFailed(
            "Command line error: one of the arguments --bootstrap-server --bootstrap-controller is "
            "required. Type --help for help."
        )
    if given.bootstrap_controller is not None:
        raise ToolFailed("there are no controllers to connect to: use --bootstrap-server")
    if given.command == "describe":
        _describe(given)
        return
    _change(given)


def _describe(given: Namespace) -> None:
    with connected(given.bootstrap_server, given.command_config) as cluster:
        from kbroker.client.admin.features import describe_features

        features = describe_features(cluster)
    for name in sorted(features.supported):
        least, most = (shown(name, level) for level in features.supported[name])
        level = shown(name, features.finalized.get(name, 0))
        epoch = "-" if features.epoch is None else features.epoch
        print(
            f"Feature: {name:<40}  SupportedMinVersion: {least:<15}  SupportedMaxVersion: "
            f"{most:<15}  FinalizedVersionLevel: {level:<15}  Epoch: {epoch}"
        )


# -- changes


def _change(given: Namespace) -> None:
    wanted = _levels(given)
    if not wanted:
        raise ToolFailed(f"You must specify at least one feature to {given.command}")
    from kbroker.client.admin import features as feature_admin

    change = feature_admin.UPGRADE
    if given.command != "upgrade":
        change = feature_admin.UNSAFE_DOWNGRADE if given.unsafe else feature_admin.SAFE_DOWNGRADE
    with connected(given.bootstrap_server, given.command_config) as cluster:
        results = feature_admin.update_features(
            cluster, wanted, change, validate_only=given.dry_run
        )
    from kbroker.cli.kafka.java_words import java_message

    failed = 0
    for name, error in sorted(results.items(), key=lambda item: item[0]):
        to = "" if given.command == "disable" else f" to {wanted[name]}"
        if error is None:
            done = "can be" if given.dry_run else "was"
            print(f"{name} {done} {given.command}d{to}.")
        else:
            failed += 1
            could = "Can" if given.dry_run else "Could"
            print(f"{could} not {given.command} {name}{to}. {java_message(error)}")
    if failed:
        raise ToolFailed(f"{failed} out of {len(wanted)} operation(s) failed.")


def _levels(given: Namespace) -> dict[str, int]:
    """Raises ToolFailed."""
    features = given.feature or []
    if given.command == "disable":
        return _once((name, 0) for name in features)
    if given.release_version is not None:
        if given.metadata is not None or features:
            raise ToolFailed("Can not specify `release-version` with other feature flags.")
        level = _metadata_level(given.release_version)
        own = defaults(level)
        if given.command == "upgrade":
            own = {name: each for name, each in own.items() if each}
        return {METADATA_VERSION: level, **own}
    pairs = [_pair(text) for text in features]
    if given.metadata is not None:
        print(" `metadata` flag is deprecated and may be removed in a future release.")
        pairs.insert(0, (METADATA_VERSION, _metadata_level(given.metadata)))
    return _once(pairs)


def _once(pairs: object) -> dict[str, int]:
    levels: dict[str, int] = {}
    for name, level in pairs:  # type: ignore[attr-defined]
        if name in levels:
            raise ToolFailed(f"Feature {name} was specified more than once.")
        levels[name] = level
    return levels


def _metadata_level(name: str) -> int:
    try:
        return level_of(name)
    except ValueError:
        known = ", ".join(NAMES[NAMES.index(LEAST) : NAMES.index(LATEST) + 1])
        raise ToolFailed(
            f"Unknown metadata.version {name}. Supported metadata.version are {known}"
        ) from None


def _pair(text: str) -> tuple[str, int]:
    name, equals, level = (part.strip() for part in text.partition("="))
    said = f"Can't parse feature=level string {text}: "
    if not equals:
        raise ToolFailed(f"{said}equals sign not found.")
    if not level.lstrip("-").isdecimal() or abs(int(level)) > _SHORT_MAX:
        raise ToolFailed(f"{said}unable to parse {level} as a short.")
    return name, int(level)


# -- tables


def _print_mapping(release: str) -> None:
    try:
        level = level_of(release)
    except ValueError:
        raise ToolFailed(
            f"Unknown release version '{release}'. Supported versions are: {LEAST} to {LATEST}"
        ) from None
    print(f"{METADATA_VERSION}={level} ({release})")
    for name, each in defaults(level).items():
        print(f"{name}={each}")


def _print_needs(features: list[str]) -> None:
    for text in features:
        name, level = _pair(text)
        if name == METADATA_VERSION:
            if not NAMES.index(LEAST) < level <= len(NAMES):
                raise ToolFailed(f"Unknown metadata.version {level}")
            print(f"{name}={level} ({shown(name, level)}) has no dependencies.")
            continue
        try:
            needed: Mapping[str, int] = needs(name, level)
        except KeyError:
            raise ToolFailed(f"Unknown feature: {name}") from None
        except ValueError:
            raise ToolFailed(f"No feature:{name} with feature level {level}") from None
        if not needed:
            print(f"{name}={level} has no dependencies.")
            continue
        print(f"{name}={level} requires:")
        for other, least in needed.items():
            more = f" ({shown(other, least)})" if other == METADATA_VERSION else ""
            print(f"    {other}={least}{more}")


TOOL = ParsedTool(_build, _run)
