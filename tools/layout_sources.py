"""The structs of the shared tables for Cython, made of ``kbroker.ipc.layouts`` by gen_docs.py."""

from __future__ import annotations

import textwrap

from kbroker.ipc.layouts import CONSTANTS, ROWS, LayoutField, Row

_HEAD = "Written by tools/gen_docs.py from kbroker/ipc/layouts.py."
_WIDTH = 124


def declarations() -> str:
    """``layouts.pxd``."""
    types = sorted({field.type for row in ROWS for field in row.fields if field.type[-2:] == "_t"})
    parts = [
        f"# The rows of the shared tables. {_HEAD}\nfrom libc.stdint cimport {', '.join(types)}\n"
    ]
    constants = [f"    {name} = {value}" for name, value in CONSTANTS.items()]
    parts.append("\n".join(("\ncdef enum:", *constants, "")))
    parts += ["\n" + _struct(row) for row in ROWS]
    return "\n".join(parts)


def _struct(row: Row) -> str:
    comment = textwrap.wrap(
        row.comment, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False
    )
    lines = [*comment, f"cdef struct {row.name}:"]
    for field in row.fields:
        lines += _field(field)
    return "\n".join((*lines, ""))


def _field(field: LayoutField) -> list[str]:
    declared = f"    {field.type} {field.name}"
    if field.items != 1:
        declared += f"[{field.items}]"
    if not field.comment:
        return [declared]
    line = f"{declared:<32}# {field.comment}"
    if len(line) <= _WIDTH:
        return [line]
    comment = textwrap.wrap(
        field.comment, _WIDTH - 4, initial_indent="    # ", subsequent_indent="    # "
    )
    return [*comment, declared]


def offsets_module() -> str:
    """``layouts.pyx``: what the C compiler made of them, for the test that compares."""
    lines = [
        f'"""What the C compiler made of the rows of the shared tables. {_HEAD}"""',
        "from libc.stddef cimport size_t",
        "",
        "",
        "def offsets() -> dict:",
        '    """Of each row: (its size, {field: (offset, size)})."""',
        "    return {",
        *(f'        "{row.name}": of_{number}(),' for number, row in enumerate(ROWS)),
        "    }",
    ]
    for number, row in enumerate(ROWS):
        lines += ["", "", f"cdef tuple of_{number}():", f"    cdef {row.name} row"]
        lines.append(f"    return sizeof({row.name}), {{")
        lines += [
            f'        "{field.name}": (<size_t>&row.{field.name} - <size_t>&row, '
            f"sizeof(row.{field.name})),"
            for field in row.fields
        ]
        lines.append("    }")
    return "\n".join((*lines, ""))
