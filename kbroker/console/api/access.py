"""ACLs and users."""

from __future__ import annotations

from kbroker.client.admin.acls import OPERATIONS as ACL_OPERATIONS
from kbroker.client.admin.acls import (
    PATTERN_TYPES,
    PERMISSIONS,
    RESOURCE_TYPES,
    Acl,
    create_acls,
    delete_acls,
    list_acls,
)
from kbroker.client.admin.users import (
    MECHANISMS,
    delete_credentials,
    list_credentials,
    set_password,
)
from kbroker.console.answers import (
    AclRow,
    Acls,
    ChangedPassword,
    CreatedAcl,
    CredentialRow,
    Deleted,
    DeletedAcls,
    Users,
)
from kbroker.console.operation import (
    TEXT,
    TEXTS,
    CheckedRequest,
    Operation,
    Parameter,
    page_of,
    paging,
)
from kbroker.console.problems import BadRequest, Problem

_NOT_OF_AN_ACL = ("ANY", "MATCH")


def _list_acls(asked: CheckedRequest) -> Acls:
    values = asked.values
    search = values["search"]
    matching = [
        row for row in list_acls(asked.cluster, Acl()) if any(search in str(text) for text in row)
    ]
    page, after = page_of(matching, values)
    rows = [_row(row) for row in page]
    return {"total": len(matching), "acls": rows, "next_cursor": after}


def _create_acl(asked: CheckedRequest) -> CreatedAcl:
    acl = _acl(asked)
    create_acls(asked.cluster, [acl])
    return {"created": _row(acl)}


def _delete_acl(asked: CheckedRequest) -> DeletedAcls:
    deleted = delete_acls(asked.cluster, [_acl(asked)])
    if not deleted:
        raise Problem(404, "NO_SUCH_ACL", "there is no such ACL")
    return {"deleted": [_row(row) for row in deleted]}


def _acl(asked: CheckedRequest) -> Acl:
    values = asked.values
    if not values["principal"].partition(":")[2]:
        raise BadRequest("principal: write it as User:alice")
    return Acl(**{name: values[name] for name in Acl._fields})


def _row(acl: Acl) -> AclRow:
    return {
        "resource_type": acl.resource_type,
        "name": acl.name or "",
        "pattern": acl.pattern,
        "principal": acl.principal or "",
        "host": acl.host or "",
        "operation": acl.operation,
        "permission": acl.permission,
    }


def _list_users(asked: CheckedRequest) -> Users:
    users: dict[str, list[CredentialRow]] = {}
    for row in list_credentials(asked.cluster):
        users.setdefault(row.user, []).append(
            {"mechanism": row.mechanism, "iterations": row.iterations}
        )
    return {"users": [{"user": user, "credentials": rows} for user, rows in users.items()]}


def _set_password(asked: CheckedRequest) -> ChangedPassword:
    values = asked.values
    mechanisms = values["mechanisms"] or list(MECHANISMS)
    for name in mechanisms:
        if name not in MECHANISMS:
            raise BadRequest(f"mechanisms: {name[:80]!r} is not allowed: {', '.join(MECHANISMS)}")
    if not values["user"] or not values["password"]:
        raise BadRequest("user and password must not be empty")
    set_password(asked.cluster, values["user"], values["password"], mechanisms)
    return {"user": values["user"], "mechanisms": mechanisms}


def _delete_user(asked: CheckedRequest) -> Deleted:
    user = asked.values["user"]
    delete_credentials(asked.cluster, list_credentials(asked.cluster, [user]))
    return {"deleted": user}


def _words(words: dict[str, int]) -> tuple[str, ...]:
    return tuple(word for word in words if word not in _NOT_OF_AN_ACL)


_ACL = (
    Parameter("resource_type", TEXT, "Of what.", required=True, one_of=_words(RESOURCE_TYPES)),
    Parameter(
        "name",
        TEXT,
        "The name of the resource, or *.",
        required=True,
        length_min=1,
        length_max=1000,
    ),
    Parameter("pattern", TEXT, "What the name is.", "LITERAL", one_of=_words(PATTERN_TYPES)),
    Parameter(
        "principal",
        TEXT,
        "Such as User:alice, or User:*.",
        required=True,
        length_min=1,
        length_max=1000,
    ),
    Parameter("host", TEXT, "Its address, or *.", "*", length_max=100),
    Parameter("operation", TEXT, "What it may do.", required=True, one_of=_words(ACL_OPERATIONS)),
    Parameter("permission", TEXT, "May or may not.", "ALLOW", one_of=_words(PERMISSIONS)),
)

OPERATIONS = (
    Operation(
        "GET",
        "/acls",
        "ACLs",
        _list_acls,
        Acls,
        (
            Parameter("search", TEXT, "Only those with this in any field.", "", length_max=1000),
            *paging(),
        ),
        needs="DESCRIBE on the cluster",
    ),
    Operation(
        "POST",
        "/acls",
        "Create an ACL",
        _create_acl,
        CreatedAcl,
        body=_ACL,
        needs="ALTER on the cluster",
    ),
    Operation(
        "POST",
        "/acls/delete",
        "Delete an ACL",
        _delete_acl,
        DeletedAcls,
        body=_ACL,
        needs="ALTER on the cluster",
    ),
    Operation(
        "GET",
        "/users",
        "Users with SCRAM credentials",
        _list_users,
        Users,
        needs="DESCRIBE on the cluster",
    ),
    Operation(
        "POST",
        "/users",
        "Let a user log in with a password, by SCRAM",
        _set_password,
        ChangedPassword,
        body=(
            Parameter("user", TEXT, "Its name.", required=True, length_min=1, length_max=1000),
            Parameter(
                "password", TEXT, "Its password.", required=True, length_min=1, length_max=1000
            ),
            Parameter("mechanisms", TEXTS, "All of SCRAM, if left out.", length_max=40),
        ),
        needs="ALTER on the cluster",
    ),
    Operation(
        "DELETE",
        "/users",
        "Delete the credentials of a user",
        _delete_user,
        Deleted,
        (Parameter("user", TEXT, "Its name.", required=True, length_min=1, length_max=1000),),
        needs="ALTER on the cluster",
    ),
)
