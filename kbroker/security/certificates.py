"""Makes certificates for tests and small sites: an authority, and what it signs.

    authority = create_authority("test CA")
    broker = authority.issue("broker", hosts=["localhost", "127.0.0.1"], server=True)
    write_private(path, broker.pem)  # for ssl.keystore.location with ssl.keystore.type=PEM

Keys are unencrypted PKCS #8, the only form that Kafka, OpenSSL and librdkafka all read.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Of a key: P-256 signs forty times faster than RSA in a handshake.
EC, RSA = "ec", "rsa"
KEY_TYPES = (EC, RSA)
AUTHORITY_DAYS = 3650
# Apple's and Google's clients reject certificates that are valid for longer.
DAYS = 397
# A client whose clock is slow still accepts a new certificate.
_CLOCKS_DIFFER = timedelta(hours=1)
_RSA_BITS = 3072
# WIRE: the longest common name (RFC 5280, ub-common-name).
_NAME_CHARS_MAX = 64

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class CertificateError(Exception):
    """Bad input, or files that do not fit together."""


class Issued(NamedTuple):
    """A key and its certificate, in PEM. chain: the certificate and that of its authority."""

    key: bytes
    certificate: bytes
    chain: bytes

    @property
    def pem(self) -> bytes:
        """All in one file, as a key store of type PEM has it."""
        return self.key + self.chain


class CertificateNames(NamedTuple):
    """What a certificate is for. hosts: names and addresses of servers."""

    name: str
    hosts: list[str]
    server: bool
    key_type: str


class Authority:
    """Signs certificates with its key."""

    def __init__(self, certificate: x509.Certificate, key: PrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @property
    def certificate(self) -> bytes:
        """In PEM, for trust stores."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key(self) -> bytes:
        """In PEM."""
        return _key_pem(self._key)

    @property
    def ends_at(self) -> datetime:
        return _ends_at(self._certificate)

    @property
    def name(self) -> str:
        return _common_name(self._certificate)

    def issue(
        self,
        name: str,
        *,
        hosts: Iterable[str] = (),
        server: bool = False,
        key_type: str = EC,
        days: float = DAYS,
        starts_at: datetime | None = None,
    ) -> Issued:
        """A new key and its certificate, of which ``name`` is the common name.

        hosts: names and addresses that clients connect to; empty for a client. server: it may be
        used by a broker, which is a client of other brokers, too. starts_at: now by default; it
        ends ``days`` later, but not after the authority does. Raises CertificateError.
        """
        key = _new_key(key_type)
        starts_at = starts_at or datetime.now(UTC)
        ends_at = min(starts_at + timedelta(days=days), self.ends_at)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if server:
            usages.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
        builder = _builder(name, key, self._certificate.subject, starts_at, ends_at)
        builder = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(encipher=key_type == RSA), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if alternatives := [_general_name(host) for host in dict.fromkeys(hosts)]:
            names = x509.SubjectAlternativeName(alternatives)
            builder = builder.add_extension(names, critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        certificate = signed.public_bytes(serialization.Encoding.PEM)
        return Issued(_key_pem(key), certificate, certificate + self.certificate)

    def signed(self, pem: bytes) -> bool:
        """Whether the first certificate of a PEM text was signed by this authority."""
        certificate = x509.load_pem_x509_certificate(pem)
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except Exception:  # InvalidSignature, ValueError, TypeError: all mean no
            return False
        return True


def create_authority(
    name: str,
    *,
    key_type: str = EC,
    days: float = AUTHORITY_DAYS,
    starts_at: datetime | None = None,
) -> Authority:
    """A new authority. Raises CertificateError."""
    key = _new_key(key_type)
    starts_at = starts_at or datetime.now(UTC)
    subject = _subject(name)
    usage = _key_usage(signs=True)
    signed = (
        _builder(name, key, subject, starts_at, starts_at + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(signed, key)


def load_authority(certificate: bytes, key: bytes) -> Authority:
    """The authority of two PEM texts. Raises CertificateError."""
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
        private = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as error:
        raise CertificateError(f"not a PEM certificate and its unencrypted key: {error}") from error
    if not isinstance(private, PrivateKey):
        raise CertificateError("its key is neither EC nor RSA")
    if private.public_key() != parsed.public_key():
        raise CertificateError("the key does not belong to the certificate")
    return Authority(parsed, private)


def names_in(pem: bytes) -> CertificateNames:
    """What the first certificate of a PEM text is for. Raises CertificateError."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise CertificateError(f"it has no PEM certificate: {error}") from error
    hosts: list[str] = []
    try:
        alternatives = certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value
        hosts = [str(each.value) for each in alternatives]
    except x509.ExtensionNotFound:
        pass  # a client's
    try:
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        server = ExtendedKeyUsageOID.SERVER_AUTH in usages
    except x509.ExtensionNotFound:
        server = True  # it may be used for everything
    key_type = RSA if isinstance(certificate.public_key(), rsa.RSAPublicKey) else EC
    return CertificateNames(_common_name(certificate), hosts, server, key_type)


def ends_at(pem: bytes) -> datetime:
    """When the first certificate of a PEM text expires."""
    return _ends_at(x509.load_pem_x509_certificate(pem))


def write_private(path: str | os.PathLike[str], data: bytes, mode: int = 0o600) -> None:
    """Write a file that only its owner may read (or with ``mode``), whole or not at all: a broker
    that reloads it never sees a part of it.
    """
    place = os.fspath(path)
    part = f"{place}.{secrets.token_hex(4)}.part"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, place)
    except BaseException:
        os.unlink(part)
        raise


# -- parts


def _new_key(key_type: str) -> PrivateKey:
    if key_type == EC:
        return ec.generate_private_key(ec.SECP256R1())
    if key_type == RSA:
        return rsa.generate_private_key(public_exponent=65537, key_size=_RSA_BITS)
    raise CertificateError(f"{key_type!r} is not one of {', '.join(KEY_TYPES)}")


def _key_pem(key: PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _subject(name: str) -> x509.Name:
    if not 0 < len(name) <= _NAME_CHARS_MAX or not name.isprintable():
        raise CertificateError(
            f"the name of a certificate has 1 to {_NAME_CHARS_MAX} printable characters; "
            f"this one is {name!r}"
        )
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    name: str, key: PrivateKey, issuer: x509.Name, starts_at: datetime, ends_at: datetime
) -> x509.CertificateBuilder:
    starts_at -= _CLOCKS_DIFFER
    if ends_at <= starts_at:
        raise CertificateError("the certificate would end before it begins")
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(starts_at)
        .not_valid_after(ends_at)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, signs: bool = False, encipher: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=encipher,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        ascii_host = host.encode("idna").decode() if not host.isascii() else host
    except UnicodeError as error:
        raise CertificateError(f"{host!r} is not the name of a host: {error}") from error
    if not ascii_host or any(char in " ,:/\\@" or not char.isprintable() for char in ascii_host):
        raise CertificateError(f"{host!r} is neither the name nor the address of a host")
    return x509.DNSName(ascii_host)


def _common_name(certificate: x509.Certificate) -> str:
    attributes = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(attributes[0].value) if attributes else ""


def _ends_at(certificate: x509.Certificate) -> datetime:
    return certificate.not_valid_after_utc
