"""What follows from the table of Kafka's tools: commands in pyproject.toml, scripts in bin/."""

from __future__ import annotations

from pathlib import Path

from kbroker.cli.kafka.table import TOOLS

ROOT = Path(__file__).resolve().parent.parent
_SCRIPTS_BEGIN = (
    "# Kafka's tools: make docs writes a line for each in kbroker/cli/kafka/table.py.\n"
)


def project() -> str:
    """pyproject.toml with a command for each of Kafka's tools."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    before, found, rest = text.partition(_SCRIPTS_BEGIN)
    if not found:
        raise LookupError("pyproject.toml has no place for the commands of Kafka's tools")
    lines = [f'{name} = "kbroker.commands:kafka_tool"\n' for name in TOOLS]
    return "".join((before, _SCRIPTS_BEGIN, *lines, "\n", rest.partition("\n\n")[2]))


def stale_links(root: Path, mend: bool) -> list[str]:
    """The scripts of bin/ that are no links to its kafka-tool, or to no tool; mended on request."""
    folder = root / "bin"
    wanted = {f"{name}.sh" for name in TOOLS}
    there = {path.name for path in folder.glob("*.sh")}
    if mend:
        folder.mkdir(exist_ok=True)
        for name in there - wanted:
            (folder / name).unlink()
        for name in wanted - there:
            (folder / name).symlink_to("kafka-tool")
    return sorted(there ^ wanted)
