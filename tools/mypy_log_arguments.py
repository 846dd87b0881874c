"""mypy: no log line shows an object as its ``repr``, such as ``ControlResponse(error=41)``.

An argument of a log call is a text, a number, an exception, or of a class that says by ``__str__``
how it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mypy.plugin import MethodContext, Plugin
from mypy.types import Instance, ProperType, TupleType, Type, UnionType, get_proper_type

OURS = "kbroker"
CALLS = {
    f"logging.Logger.{level}"
    for level in ("debug", "info", "warning", "error", "exception", "critical", "log")
}


class LogArguments(Plugin):
    """Looks at each call of a logger."""

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        return checked if fullname in CALLS else None


def checked(context: MethodContext) -> Type:
    """The type of the call, whose arguments are checked."""
    for name, given, places in zip(
        context.callee_arg_names, context.arg_types, context.args, strict=True
    ):
        if name != "args":
            continue
        for kind, place in zip(given, places, strict=True):
            for raw in shown_raw(get_proper_type(kind)):
                context.api.fail(f"a log line would show the repr of a {raw}", place)
    return context.default_return_type


def shown_raw(kind: ProperType) -> Iterator[str]:
    """The classes of ours of which a line would show what only programmers read."""
    if isinstance(kind, UnionType):
        for item in kind.items:
            yield from shown_raw(get_proper_type(item))
    elif isinstance(kind, TupleType):
        yield from shown_raw(kind.partial_fallback)
    elif isinstance(kind, Instance) and kind.type.fullname.startswith(f"{OURS}."):
        said = any(
            "__str__" in base.names or base.fullname in ("builtins.BaseException", "builtins.str")
            for base in kind.type.mro
            if base.fullname not in ("builtins.object", "builtins.tuple")
        )
        if not said and (not kind.type.has_base("builtins.int") or "__repr__" in kind.type.names):
            yield kind.type.name


def plugin(version: str) -> type[Plugin]:
    """What mypy calls."""
    return LogArguments
