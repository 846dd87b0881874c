"""Values that were written with a schema registry, decoded: Avro, Protobuf, JSON Schema.

``framing`` knows which bytes name their schema, ``registry`` fetches schemas, ``decoders`` makes
text of values. All of it needs the extra ``registry``. Neither a registry nor a value is trusted: a
program that must not fail by them decodes in ``process``, which has bounds and may be killed.
"""
