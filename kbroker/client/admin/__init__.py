"""What administrators do with a cluster: functions for a ``Cluster``, a module for each kind of
thing, and ``KafkaAdminClient``, which offers them to programs.
"""

from __future__ import annotations

from typing import Any

# ``acls`` and ``users`` were one module of this package's name: programs may import theirs from it.
_EARLIER = {
    "Acl": "acls",
    "CLUSTER_NAME": "acls",
    "Credential": "users",
    "ITERATIONS": "users",
    "MECHANISMS": "users",
    "OPERATIONS": "acls",
    "PATTERN_TYPES": "acls",
    "PERMISSIONS": "acls",
    "RESOURCE_TYPES": "acls",
    "acl_text": "acls",
    "create_acls": "acls",
    "delete_acls": "acls",
    "delete_credentials": "users",
    "list_acls": "acls",
    "list_credentials": "users",
    "set_password": "users",
}


def __getattr__(name: str) -> Any:
    if name not in _EARLIER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_EARLIER[name]}"), name)
