"""Who may do what in the console: what the broker lets them do on the wire."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.security.secured import PASSWORDS, Site
from support.surfaces.console_calls import call, got

from kbroker.client.admin.acls import Acl, create_acls
from kbroker.client.admin.topics import NewTopic, create_topics
from kbroker.client.admin.users import set_password
from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.security import Security
from kbroker.testing import Broker

pytestmark = pytest.mark.integration

# Of which ``call`` takes the path as it is.
CLUSTER = "//metrics/cluster"
AUTHORIZER = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:admin",
    "connection.failed.authentication.delay.ms": 0,
}
ADMIN = ("admin", PASSWORDS["admin"])
ALICE = ("alice", PASSWORDS["alice"])


def admin_of(broker: Broker, site: Site, listener: str) -> Cluster:
    settings = {
        "security.protocol": listener,
        "sasl.mechanism": "PLAIN",
        "sasl.username": "admin",
        "sasl.password": PASSWORDS["admin"],
        "ssl.ca.location": str(site.ca_file),
    }
    return Cluster(broker.listeners[listener], Security(settings))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module", params=["SASL_PLAINTEXT", "PLAINTEXT SASL_SSL"])
def secured(request, site: Site) -> Iterator[Broker]:
    """Alice may read one of two topics; whoever has no password, nothing."""
    listeners = request.param.split()
    settings = site.settings(*listeners, mechanisms="PLAIN,SCRAM-SHA-256")
    with Broker(settings | AUTHORIZER) as broker:
        with admin_of(broker, site, listeners[-1]) as admin:
            create_topics(admin, [NewTopic("open", 1, 1), NewTopic("secret", 1, 1)])
            create_acls(
                admin,
                [Acl("TOPIC", "open", "LITERAL", "User:alice", "*", "READ", "ALLOW")],
            )
            set_password(admin, "scram", "word", ["SCRAM-SHA-256"])
        yield broker


@pytest.mark.parametrize("path", ["/overview", "/topics", "/topics/open", "/log-dirs", CLUSTER])
def test_without_a_password_nothing_is_told(secured: Broker, path: str) -> None:
    answer = call(secured, path)

    assert b"secret" not in answer.body
    if "PLAINTEXT" not in secured.listeners:
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"].startswith("Basic ")


def test_metrics_of_the_cluster_have_what_the_user_may_see(secured: Broker) -> None:
    """Prometheus logs in with ``basic_auth``."""
    answer = call(secured, CLUSTER, login=ALICE)

    assert answer.status == 200
    assert b'kafka_topic_partition_current_offset{topic="open",partition="0"} 0' in answer.body
    assert b"secret" not in answer.body


@pytest.mark.parametrize("login", [("alice", "wrong"), ("nobody", "x"), ("admin", "word")])
def test_wrong_passwords_are_rejected(secured: Broker, login: tuple[str, str]) -> None:
    assert call(secured, "/overview", login=login).status == 401


@pytest.mark.parametrize("given", ["Bearer abc", "Basic !!!", "Basic bm9wYXNzd29yZA==", "Basic"])
def test_other_credentials_are_rejected(secured: Broker, given: str) -> None:
    assert call(secured, "/overview", headers={"Authorization": given}).status == 400


def test_users_see_their_topics_only(secured: Broker) -> None:
    everything = got(secured, "/topics", login=ADMIN)
    some = got(secured, "/topics", login=ALICE)

    assert [row["name"] for row in everything["topics"]] == ["open", "secret"]
    assert [row["name"] for row in some["topics"]] == ["open"]
    assert b"secret" not in call(secured, "/overview", login=ALICE).body


def test_users_may_do_what_their_acls_allow(secured: Broker) -> None:
    path = "/topics/open/settings"
    change = {"settings": {"retention.ms": "1000"}}

    assert call(secured, path, change, login=ALICE).status == 403
    assert call(secured, "/topics", {"name": "hers"}, login=ALICE).status == 403
    assert call(secured, "/topics/open", method="DELETE", login=ALICE).status == 403
    assert call(secured, path, change, login=ADMIN).status == 200


def test_rejection_names_the_right_that_is_missing(secured: Broker) -> None:
    answer = call(secured, "/topics/open", method="DELETE", login=ALICE)

    assert "this needs the right DELETE on the topic" in answer.message


def test_rights_are_told_before_they_are_needed(secured: Broker) -> None:
    assert got(secured, "/topics/open", login=ALICE)["rights"] == ["READ", "DESCRIBE"]
    assert "DELETE" in got(secured, "/topics/open", login=ADMIN)["rights"]
    assert "ALTER" not in got(secured, "/session", login=ALICE)["rights"]
    assert "ALTER" in got(secured, "/session", login=ADMIN)["rights"]


def test_session_says_who_asks(secured: Broker) -> None:
    found = got(secured, "/session", login=ALICE)

    assert (found["user"], found["logged_in"], found["takes_passwords"]) == ("alice", True, True)
    if "PLAINTEXT" in secured.listeners:
        assert got(secured, "/session")["user"] == "ANONYMOUS"


def test_empty_list_says_whether_it_is_empty_or_not_allowed(secured: Broker) -> None:
    for path in ("/topics", "/groups", "/transactions"):
        assert got(secured, path, login=("scram", "word"))["sees_all"] is False, path
    for path in ("/groups", "/transactions"):
        assert got(secured, path, login=ADMIN)["sees_all"] is True, path
    assert got(secured, "/topics", login=ADMIN)["sees_all"] is None


def test_logging_out_rejects_the_password_once(secured: Broker) -> None:
    """So the browser forgets it; who logs in as somebody else meanwhile is let in."""
    gone = call(secured, "//logout?user=alice", login=ALICE)
    other = call(secured, "//logout?user=alice", login=ADMIN)

    assert gone.status == 401
    assert gone.headers["WWW-Authenticate"].startswith("Basic ")
    assert b"Logged out" in gone.body
    assert other.status == 200 and b"<main" in other.body


def test_sizes_that_a_user_may_not_see_are_unknown(secured: Broker) -> None:
    (row,) = got(secured, "/topics", login=ALICE)["topics"]

    assert row["bytes"] is None
    assert row["records"] == 0


def test_users_of_scram_log_in(secured: Broker) -> None:
    assert got(secured, "/topics", login=("scram", "word"))["topics"] == []


def test_passwords_are_in_no_log(secured: Broker) -> None:
    call(secured, "/overview", login=("alice", "Zq7-wrong-password"))

    assert "Zq7" not in secured.log_text


def test_anonymous_has_the_rights_of_the_wire(site: Site) -> None:
    """On a listener without SASL everybody is ANONYMOUS, and has what ACLs say of it."""
    settings = site.settings("PLAINTEXT", "SASL_PLAINTEXT") | AUTHORIZER
    with (
        Broker({**settings, "super.users": "User:admin;User:ANONYMOUS"}) as broker,
        admin_of(broker, site, "SASL_PLAINTEXT") as admin,
    ):
        create_topics(admin, [NewTopic("any", 1, 1)])
        as_super = got(broker, "/topics")["total"]
    with (
        Broker(settings) as broker,
        admin_of(broker, site, "SASL_PLAINTEXT") as admin,
    ):
        create_topics(admin, [NewTopic("any", 1, 1)])
        as_nobody = got(broker, "/topics")["total"]
        as_admin = got(broker, "/topics", login=ADMIN)["total"]

    assert (as_super, as_nobody, as_admin) == (1, 0, 1)


def test_mutual_tls_does_not_lend_the_brokers_certificate(site: Site) -> None:
    """Its own principal is often a super user: nobody gets that by opening a page."""
    settings = site.settings("SASL_PLAINTEXT", "SSL")
    with Broker({**settings, "ssl.client.auth": "required"}) as broker:
        required = call(broker, "/overview").status
    with Broker(settings) as broker:
        not_required = call(broker, "/overview").status

    assert (required, not_required) == (401, 200)
