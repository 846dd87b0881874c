"""``kafka-delegation-tokens`` beside Kafka's own."""

from __future__ import annotations

from pathlib import Path

from interop.beside import BESIDE, Beside

from kbroker.testing import Broker

pytestmark = BESIDE

TOKENS = "kafka-delegation-tokens", "org.apache.kafka.tools.DelegationTokenCommand"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
# Ids, secrets and times.
MASKS = [r"(?m)^[\w-]{22} \S{88}", r"(?m)(?<=: )[\w-]{22}$", r"\d{4}-\d\d-\d\dT\d\d:\d\d"]


def test_tokens_are_created_renewed_described_and_expired_alike(tmp_path: Path) -> None:
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{LOGIN} user_alice="a";',
        "delegation.token.master.key": "key",
    }
    file = tmp_path / "alice.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={LOGIN} username="alice" password="a";\n'
    )
    with Broker(settings) as broker:
        both = Beside(broker.bootstrap)

        def same(*words: str) -> str:
            return both.same(*TOKENS, "--command-config", str(file), *words, masks=MASKS).stdout

        same("--describe")
        create = ("--create", "--max-life-time-period", "-1")
        assert "Created delegation token with tokenId : MASKED" in same(*create)
        same(*create, "--renewer-principal", "User:bob", "--renewer-principal", "User:carol")
        same(*create, "--owner-principal", "User:dave")
        same("--describe", "--owner-principal", "User:dave")
        text = both.ours(TOKENS[0], "--describe", "--command-config", str(file),
                         "--bootstrap-server", broker.bootstrap).stdout  # fmt: skip
        secret = next(line.split()[1] for line in text.splitlines() if "User:alice" in line)
        same("--renew", "--renew-time-period", "60000", "--hmac", secret)
        same("--expire", "--expiry-time-period", "120000", "--hmac", secret)
        for words in (
            (), ("--create",), ("--create", "--renew"), ("--describe", "--hmac", "x"), ("--renew",
             "--hmac", "eA==", "--renew-time-period", "1"), ("--bogus",), ("--describe",
             "--owner-principal", "alice"),
        ):  # fmt: skip
            same(*words)
        both.close()
