"""Every cell of the comparison at toy size against a real broker of this checkout."""

import json

import pytest
from support.running.grids import some_of

pytest.importorskip("confluent_kafka")

from perf import coordination, monitoring, saturate, storage
from perf.brokers import KbrokerBroker
from perf.cells import CELLS, Size
from perf.load_generator import LoadGenerator

pytestmark = pytest.mark.integration

TOY = Size(0.5, 0.05, 5_000, 1_000, 0.2, 0.0)
# Even at this size.
LONG = ("stored1m", "compact2g", "group300", "consume100", "sat160k", "one16")


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with KbrokerBroker(tmp_path_factory.mktemp("perf")) as running:
        yield running


@pytest.mark.parametrize(
    "cell",
    some_of(CELLS, [cell for cell in CELLS if cell.name not in LONG]),
    ids=lambda cell: cell.name,
)
@pytest.mark.slow
def test_cell_at_toy_size_yields_every_figure_it_prints(broker, cell):
    figures = cell.measure(broker, cell.parameters, TOY)

    printed = [bar.figure for bar in cell.bars]
    assert {name: figures[name] for name in printed if figures[name] < 0} == {}


@pytest.mark.parametrize("version", some_of([3, 7, 8, 9], [9]))
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_saturate_with_every_version_and_acks_succeeds(broker, capsys, version, acks):
    arguments = [f"--api-version={version}", f"--acks={acks}", "--seconds=0.05", "--warmup=0"]

    code = saturate.main(["--bootstrap", broker.bootstrap, *arguments])

    assert code == 0
    assert ", 0 errors" in capsys.readouterr().out


@pytest.mark.parametrize("part", some_of(storage.PARTS, ["killed"]))
@pytest.mark.slow
def test_storage_part_at_toy_size_yields_its_figures(tmp_path, capsys, part):
    arguments = [part, "--quick", "--brokers=kbroker", f"--place={tmp_path}", "--json"]

    assert storage.main(arguments) in (0, 1)  # machines that run tests are busy

    figures = json.loads(capsys.readouterr().out)[part]["kbroker"]
    assert figures.keys() >= {bar.figure for bar in storage.PARTS[part].bars}
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("part", ["scrape", "lag", "produce"])
def test_monitoring_part_at_toy_size_yields_its_figures(tmp_path, part):
    output = tmp_path / "figures.json"

    code = monitoring.main([part, "--quick", f"--place={tmp_path}", f"--output={output}"])

    cell = json.loads(output.read_text())["cells"][part]
    assert code in (0, 1)  # machines that run tests are busy
    figures = cell["median"]["kbroker"]
    assert figures.keys() >= {bar.figure for bar in monitoring.PARTS[part].bars}
    assert [path.name for path in tmp_path.iterdir()] == [output.name]


@pytest.mark.parametrize(
    "tool", some_of([saturate, coordination], [saturate]), ids=lambda tool: tool.__name__
)
def test_broker_that_goes_away_in_the_middle_ends_the_tool_with_one_reason(
    tool, tmp_path, capsys, monkeypatch
):
    """Deleting the topic waited half a minute and hid the reason in its own traceback."""
    part = [] if tool is saturate else ["commits"]
    with KbrokerBroker(tmp_path) as broker:

        def end_broker(*arguments):
            broker.stop()
            return LoadGenerator(*arguments)

        monkeypatch.setattr(tool, "LoadGenerator", end_broker)
        code = tool.main([*part, "--bootstrap", broker.bootstrap, "--warmup=0"])

    said = capsys.readouterr().err.splitlines()
    assert code == 1
    assert [line.split(":")[0].split("-")[0] for line in said] == [
        f"the topic {'saturate' if tool is saturate else 'commits'}",
        tool.__name__.removeprefix("perf."),
    ]
