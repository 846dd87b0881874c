"""``kbroker certs``: an authority, and certificates of brokers and clients that it signs."""

from __future__ import annotations

import argparse
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.cli.arguments import Action, CommandFailed, Usage

if TYPE_CHECKING:
    from kbroker.security.certificates import Authority

AUTHORITY_FILE, AUTHORITY_KEY_FILE, BROKER_FILE = "ca.crt", "ca.key", "broker.pem"
BROKER = "broker"
CLIENT_FILE = "client-{}.pem"
KEY_TYPES = ("ec", "rsa")
DAYS, AUTHORITY_DAYS = 397, 3650
_CLIENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")

_EPILOG = """\
examples:
  kbroker certs create --dir certs --host broker1.example.org --client alice
  kbroker certs create --dir certs --client bob      another client of the same authority
  kbroker certs create --dir certs --renew           new ones for all names that there are

The directory then has:
  ca.crt             the authority's certificate, which everybody may have
  ca.key             its key, which signs: keep it away from brokers
  broker.pem         key and certificates of the brokers
  client-NAME.pem    key and certificates of a client, whose principal is User:CN=NAME

A broker reloads a renewed broker.pem by itself. docs/security.md has the next steps."""


def _describe_create(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", required=True, metavar="DIR", help="where the files go")
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name or address that clients connect to; may be repeated (localhost, 127.0.0.1, "
        "::1 and the name of this machine)",
    )
    parser.add_argument(
        "--client", action="append", default=[], metavar="NAME", help="a client; may be repeated"
    )
    parser.add_argument(
        "--days",
        type=_positive,
        default=DAYS,
        metavar="N",
        help=f"how long certificates are valid ({DAYS})",
    )
    parser.add_argument(
        "--ca-days",
        type=_positive,
        default=AUTHORITY_DAYS,
        metavar="N",
        help=f"how long a new authority is valid ({AUTHORITY_DAYS})",
    )
    parser.add_argument(
        "--key-type",
        choices=KEY_TYPES,
        help="ec (P-256, the default) or rsa (3072 bits, for old clients)",
    )
    parser.add_argument(
        "--renew",
        action="store_true",
        help="replace certificates: the named ones, or all that are there",
    )


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days")
    return number


def _create(options: argparse.Namespace) -> None:
    place = Path(options.dir)
    for name in options.client:
        if not _CLIENT_NAME.fullmatch(name):
            raise Usage(
                f"--client {name!r}: letters, digits and . _ @ -, at most 63, first a letter or "
                "digit"
            )
    with _failures(place):
        wanted = _wanted(options, place)
        existing = [file.name for file in wanted if file.exists()]
        if existing and not options.renew:
            raise CommandFailed(
                f"{place} already has {', '.join(existing)}; add --renew to replace "
                f"{'it' if len(existing) == 1 else 'them'}, or choose another --dir"
            )
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = _authority(options, place)
        for file, make in wanted.items():
            make(authority)
            _tell(f"{'renewed' if file.name in existing else 'created'} {file}", file)
    if not options.renew:
        print(_properties(place, options))


@contextmanager
def _failures(place: Path) -> Iterator[None]:
    from kbroker.security.certificates import CertificateError

    try:
        yield
    except CertificateError as error:
        raise CommandFailed(f"{place}: {error}") from error
    except OSError as error:
        raise CommandFailed(f"{error.filename or place}: {error.strerror or error}") from error


def _wanted(options: argparse.Namespace, place: Path) -> dict[Path, Callable[[Authority], None]]:
    """The files to write, and what writes each of them."""
    clients = [place / CLIENT_FILE.format(name) for name in dict.fromkeys(options.client)]
    broker = place / BROKER_FILE
    names_all = options.renew and not options.host and not clients
    if names_all:
        clients = sorted(place.glob(CLIENT_FILE.format("*")))
        if not clients and not broker.exists():
            raise CommandFailed(f"{place} has no certificates to renew")
    wanted: dict[Path, Callable[[Authority], None]] = {}
    if options.host or (broker.exists() if names_all else not clients or not broker.exists()):
        wanted[broker] = lambda authority: _issue(authority, broker, options, BROKER)
    for file in clients:
        wanted[file] = lambda authority, file=file: _issue(  # type: ignore[misc]
            authority, file, options, file.name.removeprefix("client-").removesuffix(".pem")
        )
    return wanted


def _authority(options: argparse.Namespace, place: Path) -> Authority:
    """That of the directory, or a new one."""
    from kbroker.security import certificates

    certificate, key = place / AUTHORITY_FILE, place / AUTHORITY_KEY_FILE
    if certificate.exists() != key.exists():
        missing = key if certificate.exists() else certificate
        raise CommandFailed(f"{missing} is missing; put it back, or choose another --dir")
    if certificate.exists():
        return certificates.load_authority(certificate.read_bytes(), key.read_bytes())
    if options.renew:
        raise CommandFailed(
            f"{place} has no authority ({AUTHORITY_FILE}); leave out --renew to create it"
        )
    authority = certificates.create_authority(
        f"kbroker authority {os.urandom(4).hex()}",
        key_type=options.key_type or certificates.EC,
        days=options.ca_days,
    )
    certificates.write_private(key, authority.key)
    certificates.write_private(certificate, authority.certificate, 0o644)
    _tell(f"created {certificate} and {key}", certificate)
    return authority


def _issue(authority: Authority, file: Path, options: argparse.Namespace, name: str) -> None:
    """Issue one; what is not given is as in the certificate that it replaces."""
    from kbroker.security import certificates

    hosts, key_type = options.host, options.key_type
    if file.exists():
        before = certificates.names_in(file.read_bytes())
        name, key_type = before.name, key_type or before.key_type
        hosts = hosts or before.hosts
    is_broker = file.name == BROKER_FILE
    if is_broker and not hosts:
        hosts = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    issued = authority.issue(
        name,
        hosts=hosts if is_broker else (),
        server=is_broker,
        key_type=key_type or certificates.EC,
        days=options.days,
    )
    certificates.write_private(file, issued.pem)


def _tell(what: str, file: Path) -> None:
    from kbroker.security.certificates import ends_at, names_in

    pem = file.read_bytes()
    hosts = names_in(pem).hosts
    names = f" for {', '.join(hosts)}" if hosts else ""
    print(f"{what}{names}, valid until {ends_at(pem):%Y-%m-%d}")


def _properties(place: Path, options: argparse.Namespace) -> str:
    at = place.resolve()
    lines = [
        "",
        "# For server.properties of the brokers:",
        "listeners=SSL://:9093",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={at / BROKER_FILE}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={at / AUTHORITY_FILE}",
        "# ssl.client.auth=required    if only clients with a certificate may connect",
    ]
    for name in options.client[:1] or [""]:
        lines += [
            "",
            f"# For clients{f', here {name}' if name else ''} (Java, kbroker):",
            "security.protocol=SSL",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={at / AUTHORITY_FILE}",
        ]
        if name:
            lines += [
                "ssl.keystore.type=PEM",
                f"ssl.keystore.location={at / CLIENT_FILE.format(name)}",
            ]
        lines += ["# librdkafka:", f"# ssl.ca.location={at / AUTHORITY_FILE}"]
        if name:
            file = at / CLIENT_FILE.format(name)
            lines += [f"# ssl.certificate.location={file}", f"# ssl.key.location={file}"]
    return "\n".join(lines)


ACTIONS = {
    "create": Action(
        "create or renew certificates of an authority of your own",
        _describe_create,
        _create,
        _EPILOG,
    )
}
