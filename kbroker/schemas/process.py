"""``python -m kbroker.schemas.process``: decodes values in a process that may fail.

A registry that lies, or a value that was made for it, can cost its memory (``MEMORY_BYTES_MAX``),
its time (``ANSWER_S``) and its life, and nothing else. It reads lines of JSON: first the settings
of the registry, to which it answers with an empty line, or with what is wrong with them; then lists
of ``[schema, payload in base64]``. It answers with a line for each, in their order:
``{"format", "schema", "text", "cut"}`` or ``{"schema", "error"}``, and with BEGUN before that when
it has the schema and begins with the value. It ends with its input, and when
nobody has asked for ``IDLE_S``.
"""

from __future__ import annotations

import base64
import contextlib
import json
import resource
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, BinaryIO

from kbroker.descriptors import readable
from kbroker.schemas.decoders import Decoder, decoder_of, load_libraries
from kbroker.schemas.registry import SCHEMAS_MAX, RegistryError, SchemaRegistry

MEMORY_BYTES_MAX = 1 << 30
ANSWER_S = 5.0
IDLE_S = 120.0
# BOUND: characters of a decoded value.
TEXT_CHARS_MAX = 1 << 20
BEGUN = b"."


class _Decoding:
    """begin: called when a schema is there, and what follows is the value's doing."""

    def __init__(self, registry: SchemaRegistry, begin: Callable[[], None]) -> None:
        self._registry = registry
        self._begin = begin
        self._decoders: dict[int | str, tuple[str, Decoder]] = {}

    def answer(self, name: int | str, payload: bytes) -> dict[str, Any]:
        try:
            kind, decode = self._decoder(name)
            self._begin()
            text = decode(payload)
        except RegistryError as error:
            return {"schema": name, "error": str(error)}
        except (Exception, RecursionError) as error:  # whatever libraries raise of such bytes
            why = f"not as its schema says: {type(error).__name__}: {error}"
            return {"schema": name, "error": why[:300]}
        shown = text[:TEXT_CHARS_MAX]
        return {"format": kind, "schema": name, "text": shown, "cut": len(shown) < len(text)}

    def _decoder(self, name: int | str) -> tuple[str, Decoder]:
        if name not in self._decoders:
            schema = self._registry.schema(name)
            try:
                decode = decoder_of(schema)
            except (RegistryError, MemoryError):
                raise
            except Exception as error:
                why = f"the registry's schema {name} is none: {type(error).__name__}: {error}"
                raise RegistryError(why[:300]) from error
            while len(self._decoders) >= SCHEMAS_MAX:
                del self._decoders[next(iter(self._decoders))]
            self._decoders[name] = schema.kind, decode
        return self._decoders[name]


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    source, answers = sys.stdin.buffer, sys.stdout.buffer
    settings = json.loads(source.readline())
    try:
        decoding = _Decoding(SchemaRegistry(settings), partial(_say, answers, BEGUN))
        load_libraries()  # now, as there is more time for it than for an answer
    except ImportError as error:
        packages = "pip install 'confluent-kafka[schemaregistry]' fastavro protobuf"
        answers.write(f"{error}: {packages}\n".encode())
        return
    except ValueError as error:  # of the settings
        answers.write(f"console.schema.registry: {error}\n".encode())
        return
    _say(answers, b"")
    while readable([source.fileno()], IDLE_S):
        line = source.readline()
        if not line:
            return
        # Also where a library does not come back to Python.
        signal.setitimer(signal.ITIMER_REAL, ANSWER_S)
        for name, payload in json.loads(line):
            _say(answers, json.dumps(decoding.answer(name, base64.b64decode(payload))).encode())
        signal.setitimer(signal.ITIMER_REAL, 0)


def _say(answers: BinaryIO, line: bytes) -> None:
    answers.write(line + b"\n")
    answers.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        main()
