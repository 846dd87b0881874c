"""What to do about certificates that Java takes and OpenSSL does not, as they are too weak."""

from __future__ import annotations

import ssl

_SIGNED = (
    "is signed with SHA-1 or MD5, which Java takes from a private authority and OpenSSL does not; "
    "have it signed again with SHA-256 (keytool -gencert -sigalg SHA256withRSA) and import it"
)
_SMALL = (
    "has an RSA key of less than 2048 bits, which Java takes and OpenSSL does not; create a larger "
    "one (keytool -genkeypair -keyalg RSA -keysize 3072), and have it signed"
)
# By OpenSSL's reason for a store that it does not load, and by the message for that of a peer.
_ADVICE = {
    "CA_MD_TOO_WEAK": f"a certificate {_SIGNED}",
    "EE_KEY_TOO_SMALL": f"the certificate {_SMALL}",
    "CA_KEY_TOO_SMALL": f"the certificate of an authority {_SMALL}",
    "CA signature digest algorithm too weak": f"a certificate {_SIGNED}",
    "EE certificate key too weak": f"the certificate {_SMALL}",
    "CA certificate key too weak": f"the certificate of an authority {_SMALL}",
}


def advice(error: BaseException) -> str | None:
    """What is too weak, and what to do; None if it is something else. It has no colon: log lines
    about a client are limited by what is before one.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _ADVICE.get(error.verify_message.rstrip("."))
    return _ADVICE.get(error.reason or "") if isinstance(error, ssl.SSLError) else None
