"""What all tools do around their own work: read options, connect, turn errors into exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from kbroker.cli.kafka.options import HELP, VERSION, Given, Option, ToolOptionError, WrongUse, usage

if TYPE_CHECKING:
    from kbroker.client.connections.cluster import Cluster

BOOTSTRAP = Option("bootstrap-server", "Brokers to connect to; required.", "server to connect to")


class ToolFailed(Exception):
    """It could not do what it was told: the message goes to stderr; exit code 1."""


class ToolRefusal(Exception):
    """What Kafka's tool says of something that it does not ask a broker for."""


class Tool(NamedTuple):
    """title: above the usage text. run: does the work; returns the exit code, None for 0.
    usage_errors: whether unreadable options get the usage text, too. prefix: before the message of
    an error on stderr.
    """

    title: str
    options: Sequence[Option]
    run: Callable[[Given], int | None]
    usage_errors: bool = False
    prefix: str = ""
    title_alone: str = ""

    def main(self, words: Sequence[str]) -> int:
        """Run it with these words of the command line; returns the exit code."""
        options = [*self.options, HELP, VERSION]
        try:
            return guarded(lambda: self._run(options, words), self.prefix)
        except WrongUse as error:
            sys.stdout.flush()
            print(f"{error}\n{usage(options)}", file=sys.stderr)
            return 1

    def _run(self, options: Sequence[Option], words: Sequence[str]) -> int | None:
        if not words:
            raise WrongUse(self.title_alone or self.title)
        given = _given(self, options, words)
        if "help" in given:
            raise WrongUse(self.title)
        if "version" in given:
            print(version_text())
            return 0
        return self.run(given)


def guarded(work: Callable[[], int | None], prefix: str = "") -> int:
    """Do it; the exit code, with a line on stderr for what went wrong. Raises WrongUse.

    What a tool did not expect of a cluster is one line; of itself, a traceback.
    """
    try:
        code = work()
        sys.stdout.flush()
        return code or 0
    except (ToolFailed, ToolOptionError) as error:
        said: Exception = error
    except WrongUse:
        raise
    except Exception as error:
        from kbroker.client.errors import ClientError
        from kbroker.protocol.primitives import EncodeError

        if not isinstance(error, ClientError | EncodeError):
            raise
        said = error
    sys.stdout.flush()
    print(f"{prefix}{said}", file=sys.stderr)
    return 1


def _given(tool: Tool, options: Sequence[Option], words: Sequence[str]) -> Given:
    try:
        return Given(options, words)
    except ToolOptionError as error:
        if tool.usage_errors:
            raise WrongUse(str(error)) from error
        raise


def version_text() -> str:
    """What ``--version`` prints."""
    from kbroker import __version__

    return f"{__version__} (kbroker)"


def properties_of(path: str) -> dict[str, str]:
    """The settings in a file. Raises ToolFailed."""
    from kbroker.properties import PropertiesError, read_properties

    try:
        return dict(read_properties(path))
    except OSError as error:
        raise ToolFailed(f"{path}: {error.strerror}") from error
    except PropertiesError as error:
        raise ToolFailed(f"{path}: {error}") from error


def pairs(texts: Sequence[str]) -> dict[str, str]:
    """``key=value`` words; a key alone has the empty value."""
    values = {}
    for text in texts:
        key, _, value = text.partition("=")
        values[key] = value
    return values


def check_bootstrap(text: str | None) -> None:
    """Raises WrongUse for what is no address."""
    from kbroker.client.connections.addresses import parse_addresses
    from kbroker.client.errors import SettingRefused

    if not (text or "").strip():
        raise WrongUse("Error while validating the bootstrap address\n")
    try:
        parse_addresses(text or "")
    except SettingRefused:
        raise WrongUse("Please provide valid host:port like host1:9091,host2:9092\n ") from None


@contextmanager
def connected(
    bootstrap: str | None,
    config: str | None,
    *,
    deadline_ms: int | None = None,
    client_id: str = "",
) -> Iterator[Cluster]:
    """The cluster, with the settings of a ``--command-config`` file. Raises ToolFailed."""
    from kbroker.client.connections.cluster import Cluster
    from kbroker.client.errors import SettingRefused

    settings = properties_of(config) if config else {}
    if bootstrap is not None:
        settings["bootstrap.servers"] = bootstrap
    if client_id:
        settings["client.id"] = client_id
    more = {} if deadline_ms is None else {"deadline": max(deadline_ms, 1) / 1000}
    try:
        cluster = Cluster.from_options(settings, **more)
    except SettingRefused as error:
        raise ToolFailed(str(error)) from error
    with cluster:
        yield cluster
