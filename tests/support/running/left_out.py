"""The tests left out of a run and what they need: a line at the end of ``make test``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

# The reason of a skipped test, and the Debian package that is missing.
PACKAGES = {
    r"\b[jJ]ava": "default-jdk-headless",
    r"\b(mvn|Maven)\b": "maven",
    r"\bkcat\b": "kcat",
    r"\bgit\b": "git",
    r"\bPostgreSQL\b": "postgresql",
    r"\bmkfs\.ext4\b": "e2fsprogs",
    r"\bopenssl\b": "openssl",
    r"\bOpenSSL's headers\b": "libssl-dev",
    r"\b(ss|ip is not installed)\b": "iproute2",
    r"\bnft\b": "nftables",
    r"\bsystemd-tmpfiles\b": "systemd",
    r"\bC compiler\b": "gcc",
    r"\bzsh\b": "zsh",
    r"\bfish\b": "fish",
    r"\bkrb5kdc\b": "krb5-kdc krb5-admin-server krb5-user",
    r"\blibkrb5-dev\b": "libkrb5-dev",
    r"\blibsasl2-modules-gssapi-mit\b": "libsasl2-modules-gssapi-mit",
    r"\b(promtool|prometheus)\b": "prometheus",
    r"\bchromedriver\b": "chromium chromium-driver",
}
ROOT = re.compile(r"\broot\b")
MAVEN_CENTRAL = "Maven Central cannot be reached"


def left_out(reasons: Iterable[str]) -> str:
    """One line about the tests skipped for these reasons; empty if there are none."""
    packages: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for_root = for_maven = total = 0
    for reason in reasons:
        reason = reason.removeprefix("Skipped: ")
        total += 1
        missing = [name for pattern, name in PACKAGES.items() if re.search(pattern, reason)]
        if ROOT.search(reason):
            for_root += 1
        elif reason.startswith(MAVEN_CENTRAL):
            for_maven += 1
        elif missing:
            packages.update(missing)
        else:
            others[reason] += 1
    if not total:
        return ""
    ways = []
    if packages:
        names = " ".join(f"{name} ({count})" for name, count in sorted(packages.items()))
        ways.append(f"apt-get install {names}")
    if for_root:
        ways.append(f"be root ({for_root})")
    if for_maven:
        ways.append(f"reach Maven Central ({for_maven})")
    ways += [f"{reason} ({count})" for reason, count in sorted(others.items())]
    return f"left out: {total} tests. What brings them: {'; '.join(ways)}"
