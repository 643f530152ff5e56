"""The HLO messages, as far as the profiler reads them.

Field numbers were checked against the descriptors of xla/service/hlo.proto and xla/xla_data.proto that are compiled
into jaxlib 0.10.2 and xprof 2.24.2. Text is declared as ``bytes`` (see ``profiler.xplane.schema``). Fields that hold
messages but are read rarely or never in full (literals, the buffer assignment) are declared as ``bytes`` too: the wire
format is the same, and they are parsed only when somebody asks.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

from profiler.xplane.schema import BOOL, BYTES, INT32, INT64, UINT64, build_messages

HLO: dict[str, dict[str, tuple[int, Any]]] = {
    "HloProto": {"hlo_module": (1, "HloModuleProto"), "buffer_assignment": (3, BYTES)},
    "HloModuleProto": {
        "name": (1, BYTES),
        "entry_computation_name": (2, BYTES),
        "computations": (3, ["HloComputationProto"]),
        "id": (5, INT64),
        "entry_computation_id": (6, INT64),
        "stack_frame_index": (17, "StackFrameIndexProto"),
        "payloads": (22, [BYTES]),
    },
    "HloComputationProto": {
        "name": (1, BYTES),
        "instructions": (2, ["HloInstructionProto"]),
        "id": (5, INT64),
        "root_id": (6, INT64),
        "is_fusion_computation": (7, BOOL),
        "execution_thread": (8, BYTES),
    },
    "HloInstructionProto": {
        "name": (1, BYTES),
        "opcode": (2, BYTES),
        "shape": (3, "ShapeProto"),
        "metadata": (7, "OpMetadata"),
        "literal": (8, BYTES),
        "parameter_number": (9, INT64),
        "fusion_kind": (11, BYTES),
        "tuple_index": (13, INT64),
        "window": (15, "Window"),
        "convolution_dimension_numbers": (16, "ConvolutionDimensionNumbers"),
        "custom_call_target": (28, BYTES),
        "dot_dimension_numbers": (30, "DotDimensionNumbers"),
        "id": (35, INT64),
        "operand_ids": (36, [INT64]),
        "called_computation_ids": (38, [INT64]),
        "backend_config": (43, BYTES),
        "replica_groups": (49, ["ReplicaGroup"]),
        "feature_group_count": (50, INT64),
        "source_target_pairs": (52, ["SourceTarget"]),
        "batch_group_count": (58, INT64),
        "comparison_direction": (63, BYTES),
        "frontend_attributes": (68, "FrontendAttributes"),
        "collective_device_list": (87, "CollectiveDeviceListProto"),
        "iota_collective_device_list": (92, "IotaReplicaGroupListProto"),
        "mesh_axes_replica_group_list": (93, "MeshAxesReplicaGroupListProto"),
        "backend_config_payload": (99, "Payload"),
    },
    "ReplicaGroup": {"replica_ids": (1, [INT64])},
    "SourceTarget": {"source": (1, INT64), "target": (2, INT64)},
    "CollectiveDeviceListProto": {"replica_groups": (1, ["ReplicaGroup"])},
    "IotaReplicaGroupListProto": {
        "num_replica_groups": (1, INT64),
        "num_devices_per_group": (2, INT64),
        "iota_reshape_dims": (3, [INT64]),
        "iota_transpose_perm": (4, [INT32]),
    },
    "MeshAxesReplicaGroupListProto": {"mesh": (1, "MeshProto"), "axes": (2, ["AxisRefProto"])},
    "MeshProto": {"axes": (1, ["MeshAxis"]), "device_ids": (2, [INT64])},
    "MeshAxis": {"name": (1, BYTES), "size": (2, INT64)},
    "AxisRefProto": {"mesh_axis_index": (1, INT64), "sub_axis_info": (2, BYTES)},
    "OpMetadata": {
        "op_type": (1, BYTES),
        "op_name": (2, BYTES),
        "source_file": (3, BYTES),
        "source_line": (4, INT32),
        "stack_frame_id": (15, INT32),
    },
    "Payload": {"value": (1, BYTES), "id": (2, INT64)},
    "FrontendAttributes": {"map": (1, ["FrontendAttributesEntry"])},
    "FrontendAttributesEntry": {"key": (1, BYTES), "value": (2, BYTES)},
    "StackFrameIndexProto": {
        "file_names": (1, [BYTES]),
        "file_locations": (3, ["FileLocation"]),
        "stack_frames": (4, ["StackFrame"]),
    },
    "FileLocation": {"file_name_id": (1, INT32), "line": (3, INT32)},
    "StackFrame": {"file_location_id": (1, INT32), "parent_frame_id": (2, INT32)},
    "ShapeProto": {
        "element_type": (2, INT32),
        "dimensions": (3, [INT64]),
        "tuple_shapes": (4, ["ShapeProto"]),
        "layout": (5, "LayoutProto"),
        "is_dynamic_dimension": (6, [BOOL]),
    },
    "LayoutProto": {
        "minor_to_major": (1, [INT64]),
        "tiles": (6, ["TileProto"]),
        "element_size_in_bits": (7, INT64),
        "memory_space": (8, INT64),
    },
    "TileProto": {"dimensions": (1, [INT64])},
    "DotDimensionNumbers": {
        "lhs_contracting_dimensions": (1, [INT64]),
        "rhs_contracting_dimensions": (2, [INT64]),
        "lhs_batch_dimensions": (3, [INT64]),
        "rhs_batch_dimensions": (4, [INT64]),
    },
    "ConvolutionDimensionNumbers": {
        "kernel_input_feature_dimension": (3, INT64),
        "kernel_output_feature_dimension": (4, INT64),
        "kernel_spatial_dimensions": (6, [INT64]),
        "input_spatial_dimensions": (11, [INT64]),
        "output_spatial_dimensions": (12, [INT64]),
    },
    "Window": {"dimensions": (1, ["WindowDimension"])},
    "WindowDimension": {
        "size": (1, INT64),
        "stride": (2, INT64),
        "padding_low": (3, INT64),
        "padding_high": (4, INT64),
        "window_dilation": (5, INT64),
        "base_dilation": (6, INT64),
    },
    # Integer constants (trip counts) are all that is read of a literal.
    "LiteralProto": {"s32s": (4, [INT32]), "s64s": (5, [INT64]), "u32s": (6, ["UINT32"]), "u64s": (7, [UINT64])},
}

# xla.PrimitiveType: number -> (name as HLO prints it, bits per element)
ELEMENT_TYPES: dict[int, tuple[str, int]] = {
    1: ("pred", 8),
    2: ("s8", 8),
    3: ("s16", 16),
    4: ("s32", 32),
    5: ("s64", 64),
    6: ("u8", 8),
    7: ("u16", 16),
    8: ("u32", 32),
    9: ("u64", 64),
    10: ("f16", 16),
    11: ("f32", 32),
    12: ("f64", 64),
    14: ("opaque", 0),
    15: ("c64", 64),
    16: ("bf16", 16),
    17: ("token", 0),
    18: ("c128", 128),
    19: ("f8e5m2", 8),
    20: ("f8e4m3fn", 8),
    21: ("s4", 4),
    22: ("u4", 4),
    23: ("f8e4m3b11fnuz", 8),
    24: ("f8e5m2fnuz", 8),
    25: ("f8e4m3fnuz", 8),
    26: ("s2", 2),
    27: ("u2", 2),
    28: ("f8e4m3", 8),
    29: ("f8e3m4", 8),
    30: ("s1", 1),
    31: ("u1", 1),
    32: ("f4e2m1fn", 4),
    33: ("f8e8m0fnu", 8),
    35: ("f6e3m2fn", 6),
    36: ("f6e2m3fn", 6),
}
TUPLE = 13


@cache
def hlo() -> SimpleNamespace:
    """The HLO message classes: ``hlo().HloModuleProto`` and so on."""
    return build_messages("profiler.hlo", HLO)
