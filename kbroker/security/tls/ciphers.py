"""TLS versions and cipher suites, from the names that Java has for them."""

from __future__ import annotations

import ssl
from collections.abc import Iterable

from kbroker.security.tls.stores import StoreConfigs, refused

TLS_1_3 = "TLSv1.3"
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, TLS_1_3: ssl.TLSVersion.TLSv1_3}
# Python's ssl offers all of these or none.
_SUITES_OF_1_3 = frozenset(
    ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
)
_OLD = "TLSv1.2 or TLSv1.3; older versions are not secure"


def set_versions(context: ssl.SSLContext, configs: StoreConfigs) -> None:
    """Set the versions of a context. Raises ConfigError."""
    enabled: tuple[str, ...] = configs["ssl.enabled.protocols"]
    for name in enabled:
        if name not in VERSIONS:
            shown = ",".join(enabled)
            raise refused(configs, "ssl.enabled.protocols", _OLD, shown=shown)
    newest: str = configs["ssl.protocol"]
    if newest not in (*VERSIONS, "TLS"):
        raise refused(configs, "ssl.protocol", f"{_OLD}, or TLS for both", shown=newest)
    limit = VERSIONS.get(newest, VERSIONS[TLS_1_3])
    versions = [VERSIONS[name] for name in enabled if VERSIONS[name] <= limit]
    versions = versions or ([] if enabled else [v for v in VERSIONS.values() if v <= limit])
    if not versions:
        text = f"a version that ssl.protocol={newest} allows"
        raise refused(configs, "ssl.enabled.protocols", text, shown=",".join(enabled))
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def set_ciphers(context: ssl.SSLContext, configs: StoreConfigs) -> None:
    """Set the cipher suites of a context whose versions are set. Raises ConfigError."""
    names: tuple[str, ...] = configs["ssl.cipher.suites"]
    if not names:
        return
    shown = ",".join(names)
    of_1_3 = _SUITES_OF_1_3.intersection(names)
    others = [openssl_name(name) for name in names if name not in _SUITES_OF_1_3]
    for name in others:
        if not _is_known(name):
            text = f"cipher suites that OpenSSL has, unlike {name}"
            raise refused(configs, "ssl.cipher.suites", text, shown=shown)
    offers_1_3 = context.maximum_version == VERSIONS[TLS_1_3]
    if offers_1_3 and of_1_3 and of_1_3 != _SUITES_OF_1_3:
        text = (
            "all suites of TLS 1.3 or none, because Python cannot choose among them: "
            + ", ".join(sorted(_SUITES_OF_1_3 - of_1_3))
            + " would be offered, too"
        )
        raise refused(configs, "ssl.cipher.suites", text, shown=shown)
    # As in Java, a version without a suite is not offered.
    if not of_1_3 and offers_1_3:
        context.maximum_version = VERSIONS["TLSv1.2"]
    if not others and context.minimum_version == VERSIONS["TLSv1.2"]:
        context.minimum_version = VERSIONS[TLS_1_3]
    if context.minimum_version > context.maximum_version:
        text = "suites of the versions in ssl.enabled.protocols"
        raise refused(configs, "ssl.cipher.suites", text, shown=shown)
    if others:
        context.set_ciphers(":".join(others))


def openssl_name(name: str) -> str:
    """OpenSSL's name of a suite of TLS 1.2; what is not Java's name is returned as it is."""
    exchange, separator, rest = name.removeprefix("TLS_").partition("_WITH_")
    if not separator:
        return name
    parts: Iterable[str]
    if rest.endswith("CHACHA20_POLY1305_SHA256"):
        parts = ("CHACHA20", "POLY1305")
    else:
        # AES_128_GCM_SHA256 is AES128-GCM-SHA256, AES_128_CBC_SHA is AES128-SHA
        parts = rest.replace("AES_", "AES", 1).replace("_CBC", "").split("_")
    prefix = "" if exchange == "RSA" else exchange.replace("_", "-") + "-"
    return prefix + "-".join(parts)


def _is_known(name: str) -> bool:
    """Whether it is a suite, and not an expression such as ALL, which would allow more."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.set_ciphers(name)
    except ssl.SSLError:
        return False
    names = [each["name"] for each in context.get_ciphers()]
    return [each for each in names if each not in _SUITES_OF_1_3] == [name]
