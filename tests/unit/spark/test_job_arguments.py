"""Arguments of the jobs that would have no effect, or a surprising one."""

from __future__ import annotations

import pytest

from kbroker.spark.audit import cli as audit_cli
from kbroker.spark.audit.cli import main as audit
from kbroker.spark.load.arguments import build_parser, name_of, time_of
from kbroker.spark.load.cli import main as load
from kbroker.spark.mirror.cli import main as mirror
from kbroker.spark.mirror.places import place_of, transactional_id_of

pytestmark = pytest.mark.unit

SHORT = "default.api.timeout.ms=100"  # nobody serves these addresses
AUDIT = ["--bootstrap", "127.0.0.1:1", "--topics", "t", "--client-setting", SHORT]
LOAD = ["run", *AUDIT, "--dest", "/none", "--master", "none"]
MIRROR = ["--from", "127.0.0.1:1", "--to", "127.0.0.1:2", "--topics", "t", "--from-setting", SHORT]


@pytest.mark.parametrize(
    ("command", "arguments", "says"),
    [
        (
            "audit",
            ["--recount", "other:9092"],
            "write mirror=other:9092, or nothing for the log of",
        ),
        ("audit", ["--recount", "mirror="], "'mirror=' is not TIER=HOST:PORT"),
        ("audit", ["--recount", "--recount"], "have the same tier; the tiers are broker, broker"),
        (
            "audit",
            ["--load", "a", "--recount", "load=b:1"],
            "have the same tier; the tiers are load, load",
        ),
        ("audit", ["--load", "a", "--load", "./a/"], "given twice and would be counted twice"),
        ("audit", ["--load", ""], "it is empty: give a folder"),
        (
            "audit",
            ["--load", "a", "--name", "x"],
            "--name is only for loads in a database; leave it out",
        ),
        ("audit", ["--from", "9" * 19], "is not a time; write 2026-"),
        ("audit", ["--from", "9" * 5000], "is not a time; write 2026-"),
        ("audit", ["--from", "1795000000"], "since 1970, which are 13 digits"),
        ("load", ["--from-timestamp", "2026"], "since 1970, which are 13 digits"),
        ("load", ["--from-timestamp", "20261121006"], "since 1970, which are 13 digits"),
        ("load", ["--from-timestamp", "20261321"], "'20261321' is not a time"),
        (
            "audit",
            ["--client-setting", "isolation.level=read_uncommitted"],
            "--client-setting isolation.level has no effect, because committed records are counted",
        ),
        ("load", ["--from-timestamp", str(1 << 63)], "is not a time; write 2026-"),
        ("load", ["--follow-seconds", "5"], "--follow-seconds is only for --follow; leave it out"),
        ("mirror", ["--max-minutes", "5"], "--max-minutes is only for --follow; leave it out"),
        (
            "mirror",
            ["--name", "n" * 40_000],
            "argument --name: it has 40,000 bytes, but at most 32,000",
        ),
        ("mirror", ["--name", "\udcff"], "argument --name: it is not UTF-8"),
        (
            "load",
            ["--name", "ü" * 16_001],
            "argument --name: it has 32,002 bytes, but at most 32,000",
        ),
        ("load", ["--group", "g" * 40_000], "argument --group: it has 40,000 bytes"),
        (
            "mirror",
            ["--from-setting", "isolation.level=read_uncommitted"],
            "--from-setting isolation.level has no effect",
        ),
    ],
    ids=lambda one: str(one)[:40],  # one of them is very long
)
def test_argument_that_would_mislead_is_refused_before_anything_is_asked(
    command, arguments, says, capsys
):
    main, needed = {"audit": (audit, AUDIT), "load": (load, LOAD), "mirror": (mirror, MIRROR)}[
        command
    ]

    with pytest.raises(SystemExit) as ended:
        main([*needed, *arguments])

    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("20261121", 1_795_219_200_000),
        ("2026-11-21", 1_795_219_200_000),
        ("20261121T060000Z", 1_795_240_800_000),
        ("1795219200000", 1_795_219_200_000),
        ("0", 0),
        ("1969-12-31", 0),
    ],
)
def test_time_of_eight_digits_is_a_date(text: str, millis: int) -> None:
    """It was read as milliseconds: half past five on the first of January 1970."""
    assert time_of(text) == millis


def test_ids_made_of_the_longest_name_fit_the_wire() -> None:
    topic, partition = "t" * 249, (1 << 31) - 1
    group, _ = place_of(name_of("n" * 32_000), (topic, partition), 0)

    assert len(group) <= 32_767
    assert len(transactional_id_of("n" * 32_000, (topic, partition))) <= 32_767


def test_brokers_may_be_named_as_in_tools_of_kafka() -> None:
    given = ["--bootstrap-server", "a:1", "--topics", "t"]

    assert audit_cli.build_parser().parse_args(given).bootstrap == "a:1"
    assert build_parser("1").parse_args(["run", *given, "--dest", "d"]).bootstrap == "a:1"
