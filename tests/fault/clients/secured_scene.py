"""Three brokers whose clients come in over TLS and log in by SCRAM, again and again."""

from __future__ import annotations

from pathlib import Path

from fault.clients.proxies import Proxy
from fault.clients.scene import KbrokerScene
from support.security.secured import Site
from support.security.secured_peers import PASSWORD, USER, write_user

from perf.brokers import free_ports

MECHANISM = "SCRAM-SHA-512"
SESSION_MS = 15_000  # a busy machine takes seconds for a login


class SaslSslScene(KbrokerScene):
    """Listener SASL_SSL with a CA of its own; the exam itself uses PLAINTEXT."""

    entrance = "SASL_SSL"

    def _secured(self, directory: Path) -> dict[str, object]:
        directory.mkdir(parents=True, exist_ok=True)
        site = Site(directory)
        self.security = {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": MECHANISM,
            "sasl_username": USER,
            "sasl_password": PASSWORD,
            "ssl_ca_location": str(site.ca_file),
        }
        stores = site.settings(mechanisms=MECHANISM)
        del stores["listeners"]
        return {**stores, "connections.max.reauth.ms": SESSION_MS}

    def _open(self, broker: int) -> None:
        if broker == 0:
            write_user(self.zookeeper, MECHANISM)
        config = self.cluster.brokers[broker].config
        config["listeners"] += f",{self.entrance}://127.0.0.1:{free_ports(1)[0]}"
        config["listener.security.protocol.map"] += f",{self.entrance}:{self.entrance}"

    def proxy(self, broker: int) -> Proxy:
        port = self._listeners(broker)[self.entrance].rpartition(":")[2]
        return Proxy(int(port), sees_frames=False)
