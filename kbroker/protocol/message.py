"""The classes that message definitions become.

``class MetadataRequest(Message, api=ApiKey.METADATA)`` with a ``FIELDS`` text gets a slot per
field. The structs inside it are classes too, reached as attributes of the message:
``MetadataRequest.Topic``. They and the constructors are made on first use, because a process meets
few of the 200 messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.protocol import schema as notation
from kbroker.protocol.api import NEVER, ApiKey


class StructType(type):
    """Metaclass of messages and of the structs inside them."""

    FIELDS: str
    SCHEMA: notation.Schema
    STRUCT: notation.StructSchema

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        api: ApiKey | None = None,
        versions: tuple[int, int] | None = None,
        flexible: int = NEVER,
    ) -> Any:
        """Create a message from ``FIELDS``, or a plain class when the body has none.

        api: takes versions and the first flexible version from the key; else they are given.
        Only the names of the slots are looked up in ``FIELDS`` here, it is parsed on first use.
        """
        if "FIELDS" in namespace:
            namespace["API_KEY"] = api
            namespace["VERSIONS"] = api.versions if api is not None else versions
            namespace["FIRST_FLEXIBLE"] = api.first_flexible if api is not None else flexible
            namespace["__slots__"] = tuple(notation.top_level_names(namespace["FIELDS"]))
        return super().__new__(mcs, name, bases, namespace)

    def __init__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_options: Any
    ) -> None:
        super().__init__(name, bases, namespace)

    def _attribute(cls, name: str) -> Any:
        """Create attributes on first use: the parsed definition, the classes of structs."""
        if "FIELDS" not in cls.__dict__:
            raise AttributeError(f"{cls.__name__} has no attribute {name}")
        if name == "SCHEMA":
            cls.SCHEMA = notation.parse(cls.__name__, cls.FIELDS)
            return cls.SCHEMA
        if name == "STRUCT":
            cls.STRUCT = cls.SCHEMA.root
            return cls.STRUCT
        struct = cls.SCHEMA.structs.get(name)
        if struct is None:
            raise AttributeError(f"{cls.__name__} has no struct {name}")
        namespace = {
            "__doc__": f"Struct of ``{cls.__name__}``.",
            "__module__": cls.__module__,
            "__qualname__": f"{cls.__qualname__}.{name}",
            "__slots__": tuple(field.name for field in struct.fields),
            "STRUCT": struct,
            "MESSAGE": cls,
        }
        made = StructType(name, (Struct,), namespace)
        setattr(cls, name, made)
        return made

    if not TYPE_CHECKING:  # for whom the stubs have all structs (tools/message_stubs.py)
        __getattr__ = _attribute


class Struct(metaclass=StructType):
    """Values of named fields. Mutable, compared by value, not hashable.

    The constructor takes fields by keyword; what is left out has the default of the definition.
    """

    __slots__: tuple[str, ...] = ()

    def __init__(self, **values: Any) -> None:
        cls = type(self)
        # The first instance compiles the constructor that all others, and this one, run through.
        cls.__init__ = _compile_constructor(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__qualname__}({values})"


class Message(Struct):
    """A request, a response, or another top-level schema.

    VERSIONS: the first and the last version kbroker knows. FIRST_FLEXIBLE: from which version on
    lengths are compact and tagged fields exist (KIP-482). API_KEY: None for schemas that are no
    request or response.
    """

    __slots__ = ()

    API_KEY: ApiKey | None
    VERSIONS: tuple[int, int]
    FIRST_FLEXIBLE: int


def message_of(cls: StructType) -> Any:
    """The message class that ``cls``, a message or a struct of one, belongs to."""
    return cls.__dict__.get("MESSAGE", cls)


_UNSET: Any = object()


def _compile_constructor(cls: StructType) -> Any:
    """Compile ``__init__`` with one keyword per field."""
    names: dict[str, Any] = {"unset": _UNSET}
    arguments = []
    lines = []
    for index, field in enumerate(cls.STRUCT.fields):
        name = field.name
        if field.needs_instance:
            names[f"struct{index}"] = getattr(message_of(cls), field.type)
            arguments.append(f"{name}=unset")
            lines.append(f"    self.{name} = struct{index}() if {name} is unset else {name}")
        elif field.default == [] and field.is_array:
            arguments.append(f"{name}=unset")
            lines.append(f"    self.{name} = [] if {name} is unset else {name}")
        else:
            arguments.append(f"{name}={field.default!r}")
            lines.append(f"    self.{name} = {name}")
    keywords = ", *, " + ", ".join(arguments) if arguments else ""
    source = f"def __init__(self{keywords}):\n" + ("\n".join(lines) or "    pass")
    exec(compile(source, f"<constructor of {cls.__qualname__}>", "exec"), names)
    return names["__init__"]
