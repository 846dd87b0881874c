"""Every extension imported by Python has a stub that matches it.

Without it mypy takes whatever is called there for right.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
STUBS = ROOT / "kbroker" / "_ext"
NAMES = sorted(
    ".".join(path.relative_to(STUBS).with_suffix("").parts) for path in STUBS.rglob("*.pyi")
)
# A signature in a docstring, as ``embedsignature`` writes it.
SIGNATURE = re.compile(r"^(?:\w+\.)*\w+\((.*?)\)(?: -> .*)?$", re.DOTALL)


def stub_of(name: str) -> dict[str, ast.AST]:
    """The names of a stub that exist at run time, too."""
    found: dict[str, ast.AST] = {}
    for node in ast.parse((STUBS / f"{name.replace('.', '/')}.pyi").read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
    return {
        key: node
        for key, node in found.items()
        if not (isinstance(node, ast.ClassDef) and is_only_a_type(node))
    }


def is_only_a_type(node: ast.ClassDef) -> bool:
    bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
    return bool(bases & {"TypedDict", "Protocol", "NamedTuple"})


def public_names(module: ModuleType) -> set[str]:
    """The names that a module defines, without imports and classes for C only."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and getattr(value, "__module__", None) == module.__name__
        and not (inspect.isclass(value) and not attributes(value))
    }


def attributes(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def parameters(value: Any) -> list[str] | None:
    """Names of the parameters, None if the extension has no signature."""
    found = SIGNATURE.match((value.__doc__ or "").split("\n")[0])
    if found is None:
        return None
    # A type may precede the name; a default or an annotation may follow it.
    texts = [text.strip() for text in split(found.group(1))]
    names = [re.split("=|: ", text)[0].split()[-1] for text in texts if text not in ("", "*", "/")]
    return [name.lstrip("*") for name in names if name != "self"]


def split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "[({") - (char in "])}")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def stub_parameters(node: ast.FunctionDef) -> list[str]:
    args = node.args
    found = [*args.posonlyargs, *args.args]
    found += [args.vararg] if args.vararg else []
    found += args.kwonlyargs
    return [arg.arg for arg in found if arg.arg != "self"]


def members(node: ast.ClassDef) -> dict[str, ast.AST]:
    found: dict[str, ast.AST] = {}
    for member in node.body:
        if isinstance(member, ast.FunctionDef):
            found[member.name] = member
        elif isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            found[member.target.id] = member
    return {name: member for name, member in found.items() if not name.startswith("_")}


def is_property(node: ast.FunctionDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list)


def check_function(where: str, node: ast.AST, value: Any) -> list[str]:
    if not isinstance(node, ast.FunctionDef) or is_property(node):
        return []
    real = parameters(value)
    if real is None or real == stub_parameters(node):
        return []
    return [f"{where}: takes {real}, its stub says {stub_parameters(node)}"]


@pytest.mark.parametrize("name", NAMES)
def test_stub_says_what_the_extension_has(name: str) -> None:
    module = importlib.import_module(f"kbroker._ext.{name}")
    stub = stub_of(name)
    faults = [f"{name}.{key}: not in the extension" for key in stub if not hasattr(module, key)]
    faults += [f"{name}.{key}: not in the stub" for key in public_names(module) - stub.keys()]
    for key, node in stub.items():
        value = getattr(module, key, None)
        if isinstance(node, ast.ClassDef) and inspect.isclass(value):
            said, real = members(node), attributes(value)
            # An exception's attributes exist once it is created.
            made_later = said if issubclass(value, Exception) else ()
            missing = [one for one in said if not hasattr(value, one) and one not in made_later]
            faults += [f"{name}.{key}.{one}: not in the extension" for one in missing]
            inherited = {one for base in value.__mro__[1:] for one in attributes(base)}
            untold = real - said.keys() - inherited
            faults += [f"{name}.{key}.{one}: not in the stub" for one in untold]
            for one in said.keys() & real:
                faults += check_function(f"{name}.{key}.{one}", said[one], vars(value)[one])
        else:
            faults += check_function(f"{name}.{key}", node, value)
    assert not faults, "\n".join(faults)


def test_every_extension_that_python_imports_has_a_stub() -> None:
    imported: set[str] = set()
    for path in (ROOT / "kbroker").rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "kbroker._ext" in text else ():
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            parts = node.module.split(".")
            if parts[:2] != ["kbroker", "_ext"]:
                continue
            if len(parts) == 4:
                imported.add(".".join(parts[2:]))
            else:
                imported |= {".".join([*parts[2:], alias.name]) for alias in node.names}
    assert imported
    assert not imported - set(NAMES)
