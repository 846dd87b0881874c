"""MIT's Kerberos server, as processes of the test's user: on loopback, with files of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from kbroker.testing import wait_until

REALM, OTHER_REALM = "KBROKER.TEST", "OTHER.TEST"
SERVICE, HOST = "kafka", "localhost"
MODULE = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true"
_PLACES = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
_MASTER = "master-of-the-test"
_BETWEEN = "between-the-realms"


def kerberos_missing() -> str:
    """Why there can be no server; empty if there can."""
    for program, package in (
        ("krb5kdc", "krb5-kdc"),
        ("kadmin.local", "krb5-admin-server"),
        ("kinit", "krb5-user"),
    ):
        if shutil.which(program, path=_PLACES) is None:
            return f"needs {program} ({package})"
    return ""


def gssapi_or_skip() -> None:
    pytest.importorskip("gssapi", reason="needs libkrb5-dev, then pip: kbroker[kerberos]")


class Kdc:
    """Serves two realms, of which the first trusts the second. ``environment`` is for whatever
    uses it.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            self.port = held.getsockname()[1]
        (place / "krb5.conf").write_text(self._client_text())
        (place / "kdc.conf").write_text(self._server_text())
        self.environment: Mapping[str, str] = {
            "KRB5_CONFIG": str(place / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(place / "kdc.conf"),
            "KRB5RCACHEDIR": str(place),
            "KRB5RCACHENAME": f"file2:{place}/replays",
            "KRB5CCNAME": f"FILE:{place}/tickets",
        }
        for realm in (REALM, OTHER_REALM):
            self._run("kdb5_util", "-r", realm, "-P", _MASTER, "create", "-s")
            self._administer(realm, f"addprinc -pw {_BETWEEN} krbtgt/{REALM}@{OTHER_REALM}")
        self._process = subprocess.Popen(
            [self._program("krb5kdc"), "-n", "-r", REALM, "-r", OTHER_REALM],
            env={**os.environ, **self.environment},
            stdout=open(place / "krb5kdc.log", "wb"),
            stderr=subprocess.STDOUT,
        )
        wait_until(self._serves, 30, "the Kerberos server serves")

    def key_tab(self, principal: str) -> Path:
        """A new principal's keys."""
        realm = principal.rpartition("@")[2]
        file = self._place / f"{principal.replace('/', '-')}.keytab"
        self._administer(realm, f"addprinc -randkey {principal}")
        self._administer(realm, f"ktadd -k {file} {principal}")
        return file

    def change_key(self, principal: str, key_tab: Path) -> None:
        """The old key stays in the file, as tickets for it are valid still."""
        self._administer(principal.rpartition("@")[2], f"ktadd -k {key_tab} {principal}")

    def log_in(self, principal: str, key_tab: Path) -> Mapping[str, str]:
        """An environment with its ticket."""
        tickets = f"FILE:{self._place}/tickets-of-{principal.replace('/', '-')}"
        self._run("kinit", "-k", "-t", str(key_tab), "-c", tickets, principal)
        return {**self.environment, "KRB5CCNAME": tickets}

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)

    # -- files and programs

    def _client_text(self) -> str:
        realms = "".join(
            f"  {realm} = {{\n    kdc = 127.0.0.1:{self.port}\n  }}\n"
            for realm in (REALM, OTHER_REALM)
        )
        return (
            f"[libdefaults]\n  default_realm = {REALM}\n  dns_lookup_realm = false\n"
            "  dns_lookup_kdc = false\n  rdns = false\n  dns_canonicalize_hostname = false\n"
            f"  udp_preference_limit = 1\n[realms]\n{realms}"
            f"[domain_realm]\n  {HOST} = {REALM}\n"
        )

    def _server_text(self) -> str:
        address = f"127.0.0.1:{self.port}"
        realms = "".join(
            f"  {realm} = {{\n    database_name = {self._place}/{realm}.db\n"
            f"    key_stash_file = {self._place}/{realm}.stash\n"
            f"    acl_file = {self._place}/kadm5.acl\n"
            f"    kdc_listen = {address}\n    kdc_tcp_listen = {address}\n  }}\n"
            for realm in (REALM, OTHER_REALM)
        )
        return (
            f"[kdcdefaults]\n  kdc_listen = {address}\n  kdc_tcp_listen = {address}\n"
            f"[realms]\n{realms}[logging]\n  kdc = FILE:{self._place}/kdc.log\n"
            f"  admin_server = FILE:{self._place}/kadmin.log\n"
        )

    def _administer(self, realm: str, query: str) -> None:
        self._run("kadmin.local", "-r", realm, "-q", query)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._program(program), *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _program(self, name: str) -> str:
        found = shutil.which(name, path=_PLACES)
        assert found is not None, name
        return found

    def _serves(self) -> bool:
        assert self._process.poll() is None, (self._place / "krb5kdc.log").read_text()
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0
