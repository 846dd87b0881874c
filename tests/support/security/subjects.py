"""Certificates whose subjects kbroker's own commands refuse to make: empty ones, and long ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kbroker.security.certificates import Authority


def pem_of(authority: Authority, *units: str) -> bytes:
    """Key and certificate of a client, whose subject has only these organizational units."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signing = serialization.load_pem_private_key(authority.key, None)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    names = [
        x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit, _validate=False)
        for unit in units
    ]
    signed = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(names))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(signing, hashes.SHA256())  # type: ignore[arg-type]
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return private + signed.public_bytes(serialization.Encoding.PEM)
