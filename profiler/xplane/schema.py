"""The XSpace messages, built at run time in a descriptor pool of our own.

Other packages (xprof, tensorflow, jax tooling) register their own copies of the same messages in protobuf's default
pool, where two definitions of one name are an error. A private pool cannot collide with theirs.

Text fields are declared as ``bytes``: the wire format is the same, and a name that is not valid UTF-8 then costs one
garbled name instead of the whole message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from threading import Lock
from types import SimpleNamespace
from typing import Any

INT64, UINT64, DOUBLE, BYTES, BOOL, INT32 = "INT64", "UINT64", "DOUBLE", "BYTES", "BOOL", "INT32"

# message -> {field: (number, type)}; a type in brackets is repeated, {"K": value type} is a map from int64.
XSPACE: dict[str, dict[str, tuple[int, Any]]] = {
    "XSpace": {
        "planes": (1, ["XPlane"]),
        "errors": (2, [BYTES]),
        "warnings": (3, [BYTES]),
        "hostnames": (4, [BYTES]),
    },
    "XPlane": {
        "id": (1, INT64),
        "name": (2, BYTES),
        "lines": (3, ["XLine"]),
        "event_metadata": (4, ["EventMetadataEntry"]),
        "stat_metadata": (5, ["StatMetadataEntry"]),
        "stats": (6, ["XStat"]),
    },
    "EventMetadataEntry": {"key": (1, INT64), "value": (2, "XEventMetadata")},
    "StatMetadataEntry": {"key": (1, INT64), "value": (2, "XStatMetadata")},
    "XLine": {
        "id": (1, INT64),
        "name": (2, BYTES),
        "timestamp_ns": (3, INT64),
        "events": (4, ["XEvent"]),
        "duration_ps": (9, INT64),
        "display_id": (10, INT64),
        "display_name": (11, BYTES),
    },
    "XEvent": {
        "metadata_id": (1, INT64),
        "offset_ps": (2, INT64),
        "duration_ps": (3, INT64),
        "stats": (4, ["XStat"]),
        "num_occurrences": (5, INT64),
    },
    "XStat": {
        "metadata_id": (1, INT64),
        "double_value": (2, DOUBLE),
        "uint64_value": (3, UINT64),
        "int64_value": (4, INT64),
        "str_value": (5, BYTES),
        "bytes_value": (6, BYTES),
        "ref_value": (7, UINT64),
        "gzip_value": (8, BYTES),
    },
    "XEventMetadata": {
        "id": (1, INT64),
        "name": (2, BYTES),
        "metadata": (3, BYTES),
        "display_name": (4, BYTES),
        "stats": (5, ["XStat"]),
        "child_id": (6, [INT64]),
    },
    "XStatMetadata": {"id": (1, INT64), "name": (2, BYTES), "description": (3, BYTES)},
}

ONEOFS: dict[str, dict[str, tuple[str, ...]]] = {
    "XEvent": {"data": ("offset_ps", "num_occurrences")},
    "XStat": {
        "value": (
            "double_value",
            "uint64_value",
            "int64_value",
            "str_value",
            "bytes_value",
            "ref_value",
            "gzip_value",
        )
    },
}


def build_messages(
    package: str,
    messages: dict[str, dict[str, tuple[int, Any]]],
    oneofs: dict[str, dict[str, tuple[str, ...]]] | None = None,
) -> SimpleNamespace:
    """Message classes for a field table, in a pool that nobody else uses.

    Args:
        package: protobuf package name, for error messages only.
        messages: message name -> field name -> (number, type); a list holds the type of a repeated field.
        oneofs: message name -> oneof name -> its fields.

    Returns:
        A namespace with one generated message class per name.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for message_name, fields in messages.items():
        message = file.message_type.add(name=message_name)
        groups = (oneofs or {}).get(message_name, {})
        for group in groups:
            message.oneof_decl.add(name=group)
        for field_name, (number, kind) in fields.items():
            repeated = isinstance(kind, list)
            kind = kind[0] if repeated else kind
            field = message.field.add(name=field_name, number=number)
            field.label = field_type.LABEL_REPEATED if repeated else field_type.LABEL_OPTIONAL
            if kind in messages:
                field.type, field.type_name = field_type.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                field.type = getattr(field_type, f"TYPE_{kind}")
            for index, members in enumerate(groups.values()):
                if field_name in members:
                    field.oneof_index = index
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file) if not hasattr(pool, "AddSerializedFile") else pool.AddSerializedFile(file.SerializeToString())
    return SimpleNamespace(
        **{name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}
    )


def built_once(build: Callable[[], SimpleNamespace]) -> Callable[[], SimpleNamespace]:
    """Calls ``build`` at the first use, once even where threads use it at the same time.

    Two sets of the same classes do not mix: a message of one refuses what belongs to the other.
    """
    kept, lock = cache(build), Lock()

    def get() -> SimpleNamespace:
        with lock:
            return kept()

    return wraps(build)(get)


@built_once
def xspace() -> SimpleNamespace:
    """The XSpace message classes: ``xspace().XPlane`` and so on."""
    return build_messages("profiler.xspace", XSPACE, ONEOFS)
