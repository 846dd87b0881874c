"""Stubs of messages: a misspelt field or struct is an error of the type checker."""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tools import message_stubs

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """\
from kbroker.protocol.messages.metadata import MetadataRequest

request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="a")])
"""


@pytest.mark.parametrize(
    "line, error",
    [
        ("request.include_topic_authorised_operations = True", "has no attribute"),
        ("MetadataRequest(topic=[])", "Unexpected keyword argument"),
        ("MetadataRequest.MetadataRequestTopics()", "has no attribute"),
        ("request.allow_auto_topic_creation = 'yes'", "Incompatible types"),
        ("request.topics[0]", "is not indexable"),
        ("request.allow_auto_topic_creation = True", ""),
    ],
)
def test_misspelt_field_is_found(tmp_path, line, error):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + line + "\n")

    text, _, _ = api.run(
        ["--config-file=", "--strict", f"--cache-dir={ROOT / '.mypy_cache'}", str(program)]
    )

    assert error in text if error else text.startswith("Success"), text


def test_stub_has_every_field_with_its_type():
    (stub,) = (
        generate()
        for name, generate in message_stubs.documents(ROOT)
        if name.endswith("messages/metadata.pyi")
    )

    for cls in (MetadataRequest, MetadataResponse):
        for struct in (cls.SCHEMA.root, *cls.SCHEMA.structs.values()):
            for field in struct.fields:
                assert f"{field.name}: " in stub
    assert "topics: list[MetadataRequest.MetadataRequestTopic] | None\n" in stub
    assert "cluster_id: str | None\n" in stub
    assert "brokers: list[MetadataResponse.MetadataResponseBroker]\n" in stub
