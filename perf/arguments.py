"""The options that programs have in common, and how they read them.

    options = Arguments(__doc__)
    options.add_names("--cells", [cell.name for cell in CELLS])
    options.add_sizes(("--runs", 5, 1, "per cell and broker"))
    chosen = options.parse(arguments)

What is wrong with an option ends the program with a line that says what there is.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Any


class Arguments(argparse.ArgumentParser):
    """A parser that is described by the first line of a module's docstring."""

    def __init__(self, doc: str | None = None, **more: Any) -> None:
        super().__init__(**{"description": (doc or "").partition("\n")[0], **more})
        self._toy: dict[str, Any] = {}

    def add_names(
        self,
        option: str,
        known: Iterable[str],
        default: str = "",
        *,
        separator: str = ",",
        hidden: Iterable[str] = (),
        about: str = "",
    ) -> None:
        """``--option a,b`` of the known names, all of them by default. hidden: are known, too, but
        not what ``--help`` lists.
        """
        names = list(known)
        text = (f"{about}; " if about else "") + "of: " + separator.join(names)
        self.add_argument(
            option,
            type=_names_of([*names, *hidden], separator),
            default=default or separator.join(names),
            help=text.replace("%", "%%"),
        )

    def add_parts(self, known: Iterable[str]) -> None:
        """Positional ``parts``, all of them by default."""
        names = list(known)
        text = f"of: {', '.join(names)}"
        self.add_argument("parts", nargs="*", type=_name_of(names), default=names, help=text)

    def add_sizes(self, *sizes: tuple[str, Any, Any, str]) -> None:
        """Options: name, default, that of ``--quick``, and what they are."""
        for name, full, toy, about in sizes:
            added = self.add_argument(
                name,
                type=positive(type(full)) if name == "--runs" else type(full),
                default=full,
                help=f"{about}{'; ' if about else ''}{full}, or {toy} with --quick",
            )
            self._toy[added.dest] = toy

    def add_quick(self, about: str = "toy size, to see that it all runs; writes no result") -> None:
        self.add_argument("--quick", action="store_true", help=about)

    def add_place(self, default: str | None = "/tmp") -> None:
        self.add_argument("--place", default=default, help="where the data directories go")

    def add_overrides(self, option: str = "--override") -> None:
        """Settings of kbroker's brokers, as a list of pairs."""
        self.add_argument(option, action="append", type=_pair, default=[], metavar="KEY=VALUE")

    def add_output(self, default: str = "") -> None:
        """default: the name of the file, if the program writes one without the option."""
        text = f"default: perf/results/{default}" if default else "a JSON file for the result"
        self.add_argument("--output", help=text)

    def parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """What ``--quick`` makes smaller are the options that nobody gave."""
        if self._toy and self.parse_args(arguments).quick:
            self.set_defaults(**self._toy)
        return self.parse_args(arguments)


def positive(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """The type of an option that must be at least 1."""

    def number(text: str) -> Any:
        value = kind(text)
        if value < 1:
            raise argparse.ArgumentTypeError("must be at least 1")
        return value

    return number


def _names_of(known: Sequence[str], separator: str) -> Callable[[str], list[str]]:
    """Names may have the separator in themselves."""
    one = _name_of(known)
    longest = sorted(known, key=len, reverse=True)

    def names(text: str) -> list[str]:
        chosen, left = [], text.strip()
        while left:
            ends = (name for name in longest if f"{left}{separator}".startswith(name + separator))
            name = next(ends, left.partition(separator)[0].strip())
            chosen.append(one(name))
            left = left[len(name) + len(separator) :].strip()
        return chosen

    return names


def _name_of(known: Sequence[str]) -> Callable[[str], str]:
    def name(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"no {text}; there are {', '.join(known)}")
        return text

    return name


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value
