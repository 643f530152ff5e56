"""The attributes of an instruction, in the notation and the order of XLA's own HLO text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from profiler.hlo.groups import groups_of, iota_of
from profiler.hlo.schema import hlo

if TYPE_CHECKING:
    from profiler.hlo.module import Instruction

MOST_CONFIG = 600  # letters of a backend config; a Pallas call holds the whole kernel there
MOST_GROUPS = 4096  # devices in replica groups
_ALWAYS_DIMENSIONS = frozenset({"broadcast", "reduce", "transpose", "reverse", "concatenate", "sort", "all-gather"})
_APPLIERS = frozenset(
    """all-reduce all-reduce-start reduce reduce-scatter reduce-window map sort scatter call""".split()  # noqa: SIM905
)
_SHARDINGS = {0: "replicated", 4: "manual", 5: "unknown", 6: "unreduced"}
_LAST_DIMS = {0: "replicated", 1: "maximal", 4: "manual", 5: "unknown", 6: "unreduced"}
_PRECISIONS = {0: "default", 1: "high", 2: "highest"}


def attributes(instruction: Instruction) -> Iterator[str]:
    """Everything between the operands and the metadata, one text each."""
    proto = instruction.proto
    yield from _own(instruction)
    yield from _called(instruction)
    if proto.HasField("sharding"):
        yield f"sharding={sharding(proto.sharding)}"
    if proto.frontend_attributes.map:
        pairs = sorted(instruction.frontend_attributes.items())
        # A value that is a JSON object stands without quotes.
        texts = (f"{clean(key)}={clean(v) if v[:1] == '{' else quoted(v)}" for key, v in pairs)
        yield f"frontend_attributes={{{','.join(texts)}}}"
    if proto.control_predecessor_ids:
        table = instruction.module.protos
        names = [instruction.module.name_of(table[i]) for i in proto.control_predecessor_ids if i in table]
        yield f"control-predecessors={{{', '.join(f'%{clean(name)}' for name in names)}}}"


def metadata(instruction: Instruction) -> str | None:
    """``metadata={op_name="…" source_file="…" source_line=N}``, stack frames resolved; None where there is none."""
    file, _, line = instruction.source.rpartition(":")
    parts = [f"op_name={quoted(instruction.op_name)}"] if instruction.op_name else []
    parts += [f"source_file={quoted(file)}", f"source_line={line}"] if file else []
    return f"metadata={{{' '.join(parts)}}}" if parts else None


def backend_config(instruction: Instruction) -> str | None:
    """The backend's notes where they are short, else how long they are; None without any."""
    config = instruction.backend_config
    if not config:
        return None
    if len(config) > MOST_CONFIG:
        return f"backend_config=/* {len(config):,} bytes */"
    text = config.decode("utf-8", "replace")
    return f"backend_config={clean(text) if text[:1] == '{' else quoted(text)}"


def braces(values: Iterable[int]) -> str:
    """``{0,2}``."""
    return f"{{{','.join(map(str, values))}}}"


def clean(text: str) -> str:
    """Text of a recording without what would end its line."""
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    )


def quoted(text: str) -> str:
    """A string as HLO text quotes it."""
    return '"' + clean(text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")) + '"'


def _message(kind: str, data: bytes) -> Any:
    """A message that the schema leaves as bytes; an empty one where it is damaged."""
    message = getattr(hlo(), kind)()
    try:
        message.ParseFromString(data)
    except Exception:  # protobuf's DecodeError differs between versions
        return getattr(hlo(), kind)()
    return message


def _own(instruction: Instruction) -> Iterator[str]:
    """What an opcode has that others have not."""
    proto, opcode = instruction.proto, instruction.opcode
    if instruction.fusion_kind:
        yield f"kind={clean(instruction.fusion_kind)}"
    if opcode == "get-tuple-element":
        yield f"index={proto.tuple_index}"
    yield from _collective(instruction)
    if opcode == "iota":
        yield f"iota_dimension={next(iter(proto.dimensions), 0)}"
    elif proto.dimensions or opcode in _ALWAYS_DIMENSIONS:
        yield f"dimensions={braces(proto.dimensions)}"
    if proto.is_stable:
        yield "is_stable=true"
    if proto.slice_dimensions:
        yield f"slice={{{_slices(proto)}}}"
    if proto.dynamic_slice_sizes:
        yield f"dynamic_slice_sizes={braces(proto.dynamic_slice_sizes)}"
    if opcode == "pad":
        yield f"padding={_padding(proto)}"
    if proto.HasField("window") and proto.window.dimensions:
        yield f"window={{{_window(proto.window.dimensions)}}}"
    if proto.HasField("convolution_dimension_numbers"):
        yield f"dim_labels={_labels(proto.convolution_dimension_numbers)}"
    for name in ("feature_group_count", "batch_group_count"):
        if getattr(proto, name) > 1:
            yield f"{name}={getattr(proto, name)}"
    yield from _numbers(instruction)
    if proto.precision_config and (found := _precision(proto)):
        yield f"operand_precision={{{found}}}"
    if proto.comparison_direction:
        yield f"direction={clean(proto.comparison_direction.decode('utf-8', 'replace'))}"
    if opcode == "reduce-precision":
        yield f"exponent_bits={proto.exponent_bits}"
        yield f"mantissa_bits={proto.mantissa_bits}"
    if proto.indices_are_sorted:
        yield "indices_are_sorted=true"
    if proto.unique_indices:
        yield "unique_indices=true"
    if instruction.custom_call_target:
        yield f"custom_call_target={quoted(instruction.custom_call_target)}"
    if proto.custom_call_has_side_effect:
        yield "custom_call_has_side_effect=true"


def _collective(instruction: Instruction) -> Iterator[str]:
    proto = instruction.proto
    if proto.channel_id > 0:
        yield f"channel_id={proto.channel_id}"
    iota = iota_of(proto)
    if proto.source_target_pairs:
        pairs = ",".join(f"{{{each.source},{each.target}}}" for each in proto.source_target_pairs)
        yield f"source_target_pairs={{{pairs}}}"
    elif iota.num_replica_groups:
        yield f"replica_groups=[{iota.num_replica_groups},{iota.num_devices_per_group}]{_iota(iota)}"
    elif proto.replica_groups or proto.collective_device_list.replica_groups or proto.mesh_axes_replica_group_list.axes:
        groups = groups_of(instruction)
        ids = groups.ids if groups else ()
        if sum(map(len, ids)) <= MOST_GROUPS:
            yield f"replica_groups={{{','.join(map(braces, ids))}}}"
    if proto.use_global_device_ids:
        yield "use_global_device_ids=true"


def _called(instruction: Instruction) -> Iterator[str]:
    names = [f"%{clean(name)}" for name in instruction.called]
    opcode = instruction.opcode
    if not names:
        return
    if opcode == "while" and len(names) == 2:
        yield f"condition={names[1]}"
        yield f"body={names[0]}"
    elif opcode == "select-and-scatter" and len(names) == 2:
        yield f"select={names[0]}"
        yield f"scatter={names[1]}"
    elif opcode == "conditional":
        yield f"branch_computations={{{', '.join(names)}}}"
    elif opcode == "custom-call":
        yield f"called_computations={{{', '.join(names)}}}"
    else:
        yield f"{'to_apply' if opcode in _APPLIERS else 'calls'}={names[0]}"


def _numbers(instruction: Instruction) -> Iterator[str]:
    """Dimension numbers of dots, gathers and scatters."""
    proto = instruction.proto
    if proto.HasField("dot_dimension_numbers"):
        dot = proto.dot_dimension_numbers
        for name, values, always in (
            ("lhs_batch_dims", dot.lhs_batch_dimensions, False),
            ("lhs_contracting_dims", dot.lhs_contracting_dimensions, True),
            ("rhs_batch_dims", dot.rhs_batch_dimensions, False),
            ("rhs_contracting_dims", dot.rhs_contracting_dimensions, True),
        ):
            if values or always:
                yield f"{name}={braces(values)}"
    for kind, data, optional in (
        (
            "GatherDimensionNumbers",
            proto.gather_dimension_numbers,
            ("operand_batching_dims", "start_indices_batching_dims"),
        ),
        (
            "ScatterDimensionNumbers",
            proto.scatter_dimension_numbers,
            ("input_batching_dims", "scatter_indices_batching_dims"),
        ),
    ):
        if not data:
            continue
        message = _message(kind, data)
        names = [field.name for field in message.DESCRIPTOR.fields if field.name != "index_vector_dim"]
        for name in names:
            if getattr(message, name) or name not in optional:
                yield f"{name}={braces(getattr(message, name))}"
        yield f"index_vector_dim={message.index_vector_dim}"
    if proto.gather_dimension_numbers:
        yield f"slice_sizes={braces(proto.gather_slice_sizes)}"


def _slices(proto: Any) -> str:
    dims = [_message("SliceDimensions", data) for data in proto.slice_dimensions]
    strided = any(each.stride != 1 for each in dims)
    return ", ".join(f"[{d.start}:{d.limit}{f':{d.stride}' if strided else ''}]" for d in dims)


def _padding(proto: Any) -> str:
    dims = _message("PaddingConfig", proto.padding_config).dimensions
    interior = any(each.interior_padding for each in dims)
    return "x".join(
        f"{d.edge_padding_low}_{d.edge_padding_high}{f'_{d.interior_padding}' if interior else ''}" for d in dims
    )


def _window(dims: Any) -> str:
    parts = [f"size={'x'.join(str(d.size) for d in dims)}"]
    for name, values, usual in (
        ("stride", [str(d.stride or 1) for d in dims], "1"),
        ("pad", [f"{d.padding_low}_{d.padding_high}" for d in dims], "0_0"),
        ("lhs_dilate", [str(d.base_dilation or 1) for d in dims], "1"),
        ("rhs_dilate", [str(d.window_dilation or 1) for d in dims], "1"),
        ("rhs_reversal", [str(int(d.window_reversal)) for d in dims], "0"),
    ):
        if any(value != usual for value in values):
            parts.append(f"{name}={'x'.join(values)}")
    return " ".join(parts)


def _labels(numbers: Any) -> str:
    def labelled(named: dict[str, int], spatial: Any) -> str:
        where = {dim: letter for letter, dim in named.items()} | {dim: str(i) for i, dim in enumerate(spatial)}
        return "".join(where[dim] for dim in sorted(where))

    first = labelled(
        {"b": numbers.input_batch_dimension, "f": numbers.input_feature_dimension}, numbers.input_spatial_dimensions
    )
    kernel = labelled(
        {"i": numbers.kernel_input_feature_dimension, "o": numbers.kernel_output_feature_dimension},
        numbers.kernel_spatial_dimensions,
    )
    output = labelled(
        {"b": numbers.output_batch_dimension, "f": numbers.output_feature_dimension}, numbers.output_spatial_dimensions
    )
    return f"{first}_{kernel}->{output}"


def _precision(proto: Any) -> str:
    """Precisions of the operands, nothing where all are the default."""
    values = _message("PrecisionConfig", proto.precision_config).operand_precision
    return ",".join(_PRECISIONS.get(value, str(value)) for value in values) if any(values) else ""


def _iota(proto: Any) -> str:
    """``<=[4,2]T(1,0)``."""
    order = list(proto.iota_transpose_perm)
    turned = f"T({','.join(map(str, order))})" if order != sorted(order) else ""
    return f"<=[{','.join(map(str, proto.iota_reshape_dims))}]{turned}"


def sharding(proto: Any, depth: int = 0) -> str:
    """``{devices=[2,1]<=[2]}``, ``{replicated}``, ``{{…}, {…}}``."""
    if proto.type == 2 and depth < 4:
        return f"{{{', '.join(sharding(each, depth + 1) for each in proto.tuple_shardings)}}}"
    if proto.type == 1:
        return f"{{maximal device={next(iter(proto.tile_assignment_devices), 0)}}}"
    if proto.type in _SHARDINGS:
        return f"{{{_SHARDINGS[proto.type]}}}"
    dims = ",".join(map(str, proto.tile_assignment_dimensions))
    ids = _iota(proto) if proto.iota_reshape_dims else ",".join(map(str, proto.tile_assignment_devices[:MOST_GROUPS]))
    last = " last_tile_dim_replicate" if proto.replicate_on_last_tile_dim else ""
    if proto.last_tile_dims:
        last = f" last_tile_dims={{{', '.join(_LAST_DIMS.get(each, '?') for each in proto.last_tile_dims)}}}"
    return f"{{devices=[{dims}]{ids}{last}}}"
