"""Clients with names that nobody expects: served as by Kafka, or refused; nobody else notices."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.process_harness import http_get
from support.clients.wire_client import WireClient, batch_of
from support.faults.hostile_harness import MIB, nothing_dies
from support.security.acl_requests import acl
from support.security.acl_requests import create as create_acls
from support.security.secured import SecuredClient, Site, address_of
from support.security.subjects import pem_of

from kbroker.errors import ErrorCode
from kbroker.protocol.messages.alter_client_quotas import AlterClientQuotasRequest
from kbroker.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
)
from kbroker.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from kbroker.protocol.messages.heartbeat import HeartbeatRequest
from kbroker.protocol.messages.init_producer_id import InitProducerIdRequest
from kbroker.protocol.messages.join_group import JoinGroupRequest
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest
from kbroker.security.operations import AclOperation, Kind
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

NOBODY = "User:"  # whose certificate has no subject


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def broker(site: Site) -> Iterator[Broker]:
    settings = site.settings("PLAINTEXT", "SSL") | {
        "ssl.client.auth": "required",
        "delegation.token.secret.key": "Zq7-key-of-tokens",
        "quota.producer.default": "1000000000",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with Broker(settings) as started:
        with WireClient((started.host, started.port)) as admin:
            admin.create_topic("t")
            every = [
                acl("*", AclOperation.ALL, kind, "*", principal=NOBODY)
                for kind in (Kind.TOPIC, Kind.GROUP, Kind.TRANSACTIONAL_ID)
            ]
            create_acls(admin, *every)
        yield started


def context(site: Site, place: Path, *units: str) -> ssl.SSLContext:
    file = place / "client.pem"
    file.write_bytes(pem_of(site.authority, *units))
    found = site.client_context()
    found.load_cert_chain(file)
    return found


def test_client_without_a_subject_is_served_by_every_coordinator(
    broker: Broker, site: Site, tmp_path: Path
) -> None:
    """It is ``User:`` in Kafka, too. Its first request to a coordinator ended each io worker."""
    cls = OffsetCommitRequest
    part = cls.OffsetCommitRequestPartition(committed_offset=5)
    commit = cls(group_id="g", topics=[cls.OffsetCommitRequestTopic(name="t", partitions=[part])])
    of_user = context(site, tmp_path)
    growth = 64 * MIB  # of modules that the first request of a kind loads
    address = address_of(broker, "SSL")
    with nothing_dies(broker, growth), SecuredClient(address, context=of_user) as client:
        client.call(FindCoordinatorRequest(key="g"), 2)

        def committed() -> bool:
            return bool(client.call(commit, 2).topics[0].partitions[0].error_code == 0)

        wait_until(committed, 30, "the offset is committed")
        joined = client.call(
            JoinGroupRequest(
                group_id="g2",
                protocol_type="consumer",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range")],
            ),
            5,
        )
        beat = client.call(HeartbeatRequest(group_id="g2", member_id="x"), 2)
        client.call(FindCoordinatorRequest(key="x", key_type=1), 2)
        transactional = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
        wait_until(lambda: client.call(transactional, 2).error_code == 0, 30)
        token = client.call(CreateDelegationTokenRequest(max_lifetime_ms=-1), 2)

    assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert beat.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert (token.error_code, token.principal_type, token.principal_name) == (0, "User", "")


NAMES = ["", ":", "a:b", "\0", "<default>", "%", "/", "..", "*", '"', "\\", "\r\n", "\u202e",
         "{}", ",=", "x" * 32_767, "ä" * 16_000, "\U0001f600"]  # fmt: skip


def test_names_of_any_kind_end_no_process_and_no_scrape(broker: Broker) -> None:
    """As client id, group, user of a quota and of SCRAM; /metrics and /quotas show them."""
    quotas, users = AlterClientQuotasRequest, AlterUserScramCredentialsRequest
    commit = OffsetCommitRequest
    for name in NAMES:
        part = commit.OffsetCommitRequestPartition(committed_offset=1)
        topic = commit.OffsetCommitRequestTopic(name="t", partitions=[part])
        entries = [
            quotas.EntryData(
                entity=[quotas.EntityData(entity_type=kind, entity_name=name)],
                ops=[quotas.OpData(key="producer_byte_rate", value=1e9)],
            )
            for kind in ("user", "client-id")
        ]
        user = users.ScramCredentialUpsertion(
            name=name, mechanism=1, iterations=4096, salt=b"s", salted_password=b"p" * 32
        )
        with (
            nothing_dies(broker, 64 * MIB),
            WireClient((broker.host, broker.port), client_id=name) as client,
        ):
            client.produce("t", {0: batch_of([b"x"])})
            client.call(commit(group_id=name, topics=[topic]), 2)
            client.call(quotas(entries=entries), 1)
            (kept,) = client.call(users(upsertions=[user]), 0).results
            client.produce("t", {0: batch_of([b"x"])})
        assert kept.error_code in (0, ErrorCode.UNACCEPTABLE_CREDENTIAL), ascii(name)[:20]
    with nothing_dies(broker, 64 * MIB):
        for path in ("/metrics", "/metrics/cluster", "/jmx", "/groups", "/quotas"):
            assert http_get(broker, path)[0] == 200


def test_client_whose_subject_is_longer_than_any_name_is_refused(
    broker: Broker, site: Site, tmp_path: Path
) -> None:
    of_user = context(site, tmp_path, *["x" * 6_000] * 3)
    with nothing_dies(broker):
        try:
            with SecuredClient(address_of(broker, "SSL"), context=of_user) as client:
                assert client.is_closed(30)
        except OSError:
            pass  # the alert came before the first request

        wait_until(lambda: "a certificate that names nobody" in broker.log_text, 30)
