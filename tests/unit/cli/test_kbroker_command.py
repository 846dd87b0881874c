"""``kbroker``: its verbs, its errors in one line, and its output."""

from __future__ import annotations

import pytest

from kbroker.cli import arguments, command

pytestmark = pytest.mark.unit


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = command.main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("verb", command.VERBS)
def test_every_verb_has_actions_with_help(capsys, verb):
    module = command.module_of(verb)
    if not hasattr(module, "ACTIONS"):
        with pytest.raises(SystemExit) as caught:
            command.main([verb, "--help"])
        assert caught.value.code == 0
        assert f"usage: kbroker {verb} " in capsys.readouterr().out
        return
    actions = module.ACTIONS

    code, out, _ = run(capsys, verb, "--help")

    assert code == 0
    for name, action in actions.items():
        assert action.title in out
        with pytest.raises(SystemExit) as caught:
            command.main([verb, name, "--help"])
        assert caught.value.code == 0
        assert f"kbroker {verb} {name}" in capsys.readouterr().out


def test_help_names_all_verbs(capsys):
    code, out, _ = run(capsys, "--help")

    assert code == 0
    assert all(f"\n  {verb} " in out for verb in command.VERBS)


def test_verb_alone_says_what_there_is(capsys):
    assert run(capsys, "acl")[0] == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["acls"], "kbroker: no verb 'acls': did you mean 'acl'?"),
        (["frob"], f"kbroker: no verb 'frob': there are {', '.join(command.VERBS)}"),
        (
            ["user", "ad"],
            "kbroker user: no action 'ad': did you mean 'add'? (there are add, list, delete)",
        ),
        (["-o", "x"], "kbroker: -o: options follow a verb, as in kbroker topic list -o json"),
        (["start", "-p", "1"], "kbroker start: unknown option -p"),
        (
            ["certs", "create", "--dir", "x", "--clinet", "alice"],
            "kbroker certs create: unknown option --clinet; did you mean --client?",
        ),
        (["certs", "create", "--hots=x"], "kbroker certs create: unknown option --hots; did you "
         "mean --host?"),
        (["certs", "create"], "kbroker certs create: the following arguments are required: --dir"),
        (["certs", "create", "--dir", "x", "y"], "kbroker certs create: argument 'y' is too much"),
        (
            ["certs", "create", "--dir", "x", "--days", "0"],
            "kbroker certs create: argument --days: '0' is not a number of days",
        ),
        (
            ["user", "list", "--timeout", "soon"],
            "kbroker user list: argument --timeout: 'soon' is not a number of seconds from 0.001 "
            "to 999999",
        ),
        (
            ["user", "add", "alice", "--iterations", "1"],
            "kbroker user add: argument --iterations: '1' is not between 4096 and 16384",
        ),
        (
            ["user", "list", "--bootstrap-server", "nowhere"],
            "kbroker user list: bootstrap.servers: 'nowhere' is not host:port",
        ),
        (
            ["user", "list", "--command-config", "/absent"],
            "kbroker user list: --command-config /absent: No such file or directory",
        ),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_line_and_exit_code_2(capsys, words, line):
    assert run(capsys, *words) == (2, "", f"{line}\n")


def test_brokers_that_cannot_be_reached_are_all_named(capsys):
    servers = "127.0.0.1:1,127.0.0.1:2"

    code, out, err = run(capsys, "user", "list", "--bootstrap-server", servers, "--timeout", "0.2")

    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "127.0.0.1:1: cannot connect" in err
    assert "127.0.0.1:2: cannot connect" in err


def test_setting_that_the_client_does_not_have_is_wrong_usage(capsys, tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_SSL\nsasl.mechanism=DIGEST-MD5\n")

    code, _, err = run(capsys, "acl", "list", "--command-config", str(file))

    assert code == 2
    assert "sasl.mechanism: DIGEST-MD5 is not supported" in err


ROWS = [
    {"user": "alice", "count": 3, "tags": ["a", "b"]},
    {"user": "on\x1b[2J", "count": None, "tags": []},
]


def test_table_has_columns_and_hides_what_moves_the_cursor():
    text = arguments.table_text({"user": "USER", "count": "COUNT"}, ROWS)

    assert text.splitlines() == ["USER       COUNT", "alice      3", "on\\x1b[2J  -"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("User", "User"),
        ("a.b-c_d/e", "a.b-c_d/e"),
        ("yes", '"yes"'),
        ("NULL", '"NULL"'),
        ("*", '"*"'),
        ("User:*", '"User:*"'),
        ("", '""'),
        ("12", '"12"'),
        ("\u00fc\n", '"\\u00fc\\n"'),
        # YAML has no pairs of escapes for one character.
        ("\U0001f600\x7f", '"\\U0001f600\\u007f"'),
        (12, "12"),
        (None, "null"),
        (["a", "no"], '[a, "no"]'),
    ],
)
def test_yaml_quotes_what_it_would_read_as_something_else(capsys, value, text):
    arguments.printed("yaml", {}, [{"first": 1, "value": value}])

    assert capsys.readouterr().out == f"- first: 1\n  value: {text}\n"


def test_no_rows_are_a_sentence_for_people_and_an_empty_list_for_programs(capsys):
    for kind, text in (("table", "nobody\n"), ("json", "[]\n"), ("yaml", "[]\n")):
        arguments.printed(kind, {"user": "USER"}, [], "nobody")

        assert capsys.readouterr().out == text


def test_nested_yaml_has_a_line_for_each_item():
    document = [
        {"name": "t", "configs": {"a.b": "1"}, "rows": [{"at": 1, "isr": [0, 1]}, {"at": 2}]},
        {"name": "u", "configs": {}, "rows": []},
        [[1], [2, 3]],
    ]

    assert arguments.yaml_text(document).splitlines() == [
        "- name: t",
        "  configs:",
        '    a.b: "1"',
        "  rows:",
        "    - at: 1",
        "      isr: [0, 1]",
        "    - at: 2",
        "- name: u",
        "  configs: {}",
        "  rows: []",
        "- - [1]",
        "  - [2, 3]",
    ]
