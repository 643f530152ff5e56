"""Renderers: a frozen result in, bytes in one format out. None computes a figure of its own.

A *view* turns a result into blocks (``model``); text and Markdown draw blocks. JSON and CSV take the result itself,
HTML a page of its own. Modules are imported when their format is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiler.api import OpTable
    from profiler.report.model import Document
    from profiler.report.output import Style
    from profiler.results import Check, CommReport, ConfigDelta, Diff, Ladder, MemoryReport, Summary
    from profiler.results_efficiency import Kernels, RematReport, Roofline
    from profiler.results_health import Health
    from profiler.results_history import History
    from profiler.results_skew import HostsReport


def render_summary(summary: Summary, format_name: str, style: Style, top: int | None = None) -> bytes:
    """``profiler summary``: text, json, markdown or csv (the families)."""
    if format_name == "json":
        from profiler.report.json_ import summary_object, to_json

        return to_json(summary_object(summary)).encode()
    if format_name == "csv":
        from profiler.report.csv_ import summary_csv

        return _encode(summary_csv(summary))
    from profiler.report.summary_view import summary_document

    return _draw(summary_document(summary, top), format_name, style)


def render_ops(table: OpTable, format_name: str, style: Style, top: int | None = None) -> bytes:
    """``profiler ops``: text, json, markdown, csv or parquet. The data formats hold every row unless ``top`` is set."""
    if format_name == "json":
        from profiler.report.json_ import ops_object, to_json

        return to_json(ops_object(table, top)).encode()
    if format_name == "csv":
        from profiler.report.csv_ import ops_csv

        return _encode(ops_csv(table, top))
    if format_name == "parquet":
        import io

        buffer = io.BytesIO()
        table.ops.head(top or table.ops.height).write_parquet(buffer)
        return buffer.getvalue()
    from profiler.report.ops_view import ops_document

    return _draw(ops_document(table, top), format_name, style)


def render_kernels(result: Kernels, format_name: str, style: Style, top: int | None = None) -> bytes:
    """``profiler kernels``: text, json, markdown or csv (the variants)."""
    if format_name == "json":
        from profiler.report.json_ import result_object, to_json

        return to_json(result_object(result)).encode()
    if format_name == "csv":
        from profiler.report.csv_ import rows_csv
        from profiler.results_efficiency import KernelVariant

        return _encode(rows_csv(KernelVariant, result.variants, top))
    from profiler.report.kernels_view import kernels_document

    return _draw(kernels_document(result, top), format_name, style)


def render_memory(report: MemoryReport, format_name: str, style: Style, top: int | None = None) -> bytes:
    """``profiler memory``: text, json, markdown or csv (the tensors at the static peak)."""
    if format_name == "json":
        from profiler.report.json_ import result_object, to_json

        return to_json(result_object(report)).encode()
    if format_name == "csv":
        from profiler.report.csv_ import rows_csv
        from profiler.results import MemoryTensor

        return _encode(rows_csv(MemoryTensor, report.tensors, top))
    from profiler.report.memory_view import memory_document

    return _draw(memory_document(report, top), format_name, style)


def render_remat(report: RematReport, format_name: str, style: Style, top: int | None = None) -> bytes:
    """``profiler remat``: text, json, markdown or csv (what keeping each tensor would cost and save)."""
    if format_name == "json":
        from profiler.report.json_ import result_object, to_json

        return to_json(result_object(report)).encode()
    if format_name == "csv":
        from profiler.report.csv_ import rows_csv
        from profiler.results_efficiency import KeepOption

        return _encode(rows_csv(KeepOption, report.options, top))
    from profiler.report.remat_view import remat_document

    return _draw(remat_document(report, top), format_name, style)


def render_roofline(result: Roofline, format_name: str, style: Style, top: int | None = None) -> bytes:
    """``profiler roofline``: text, json, markdown or csv (the ops)."""
    if format_name == "json":
        from profiler.report.json_ import plain, result_object, to_json

        return to_json({**result_object(result), "ops": plain(result.ops[: top or None])}).encode()
    if format_name == "csv":
        from profiler.report.csv_ import rows_csv
        from profiler.results_efficiency import RoofOp

        return _encode(rows_csv(RoofOp, result.ops, top))
    from profiler.report.roofline_view import roofline_document

    return _draw(roofline_document(result, top), format_name, style)


def render_health(health: Health, format_name: str, style: Style, top: int | None = None) -> bytes:
    """``profiler health``: text, json, markdown or csv (the coverage)."""
    if format_name == "json":
        from profiler.report.json_ import result_object, to_json

        return to_json(result_object(health)).encode()
    if format_name == "csv":
        from profiler.report.csv_ import rows_csv
        from profiler.results_health import Coverage

        return _encode(rows_csv(Coverage, health.coverage))
    from profiler.report.health_view import health_document

    return _draw(health_document(health, top), format_name, style)


def render_hosts(report: HostsReport, format_name: str, style: Style, top: int | None = None) -> bytes:
    """``profiler hosts``: text, json, markdown or csv (the devices)."""
    if format_name == "json":
        from profiler.report.json_ import result_object, to_json

        return to_json(result_object(report)).encode()
    if format_name == "csv":
        from profiler.report.csv_ import rows_csv
        from profiler.results_skew import SkewDevice

        return _encode(rows_csv(SkewDevice, report.devices, top))
    from profiler.report.hosts_view import hosts_document

    return _draw(hosts_document(report, top), format_name, style)


def render_comm(report: CommReport, format_name: str, style: Style, top: int | None = None) -> bytes:
    """``profiler comm``: text, json, markdown or csv (the rows)."""
    if format_name == "json":
        from profiler.report.json_ import result_object, to_json

        return to_json(result_object(report)).encode()
    if format_name == "csv":
        from profiler.report.csv_ import rows_csv
        from profiler.results import CommRow

        return _encode(rows_csv(CommRow, report.rows, top))
    from profiler.report.comm_view import comm_document

    return _draw(comm_document(report, top), format_name, style)


def render_diff(diff: Diff, format_name: str, style: Style, top: int | None = None) -> bytes:
    """``profiler diff``: text, json, markdown or csv (the matched ops)."""
    if format_name == "json":
        from profiler.report.json_ import diff_object, to_json

        return to_json(diff_object(diff, top)).encode()
    if format_name == "csv":
        from profiler.report.csv_ import diff_csv

        return _encode(diff_csv(diff, top))
    if format_name == "markdown":
        from profiler.report.comment_view import comment_document

        return _draw(comment_document(diff, top), format_name, style)
    from profiler.report.diff_view import diff_document

    return _draw(diff_document(diff, top), format_name, style)


def render_check(check: Check, format_name: str, style: Style, top: int | None = None) -> bytes:
    """``profiler check``: text, json or markdown; the JSON holds every threshold."""
    if format_name == "json":
        from profiler.report.json_ import result_object, to_json

        return to_json(result_object(check)).encode()
    from profiler.report.check_view import check_document

    if format_name == "markdown":
        from profiler.report.markdown import GATE_LIMIT, render_markdown

        return _encode(render_markdown(check_document(check, top), GATE_LIMIT))
    return _draw(check_document(check, top), format_name, style)


def render_ladder(ladder: Ladder, format_name: str, style: Style, top: int | None = None) -> bytes:
    """``profiler ladder``: text, json, markdown or csv (the contributions of every rung)."""
    if format_name == "json":
        from profiler.report.json_ import result_object, to_json

        return to_json(result_object(ladder)).encode()
    if format_name == "csv":
        from profiler.report.csv_ import ladder_csv

        return _encode(ladder_csv(ladder))
    from profiler.report.ladder_view import ladder_document

    return _draw(ladder_document(ladder, top), format_name, style)


def render_history(history: History, format_name: str, style: Style, top: int | None = None) -> bytes:
    """``profiler history``: text, json, markdown or csv (the runs)."""
    if format_name == "json":
        from profiler.report.json_ import result_object, to_json

        return to_json(result_object(history)).encode()
    if format_name == "csv":
        from profiler.report.csv_ import history_csv

        return _encode(history_csv(history))
    from profiler.report.history_view import history_document

    return _draw(history_document(history, top), format_name, style)


def render_config(delta: ConfigDelta, format_name: str, style: Style, top: int | None = None) -> bytes:
    """``profiler config``: text, json, markdown or csv (the knobs)."""
    if format_name == "json":
        from profiler.report.json_ import result_object, to_json

        return to_json(result_object(delta)).encode()
    if format_name == "csv":
        from profiler.report.csv_ import rows_csv
        from profiler.results import Knob

        return _encode(rows_csv(Knob, delta.knobs, top))
    from profiler.report.knobs_view import config_document

    return _draw(config_document(delta, top), format_name, style)


def render_peaks(format_name: str, style: Style) -> bytes:
    """``profiler peaks``: text, json, markdown or csv."""
    if format_name == "json":
        from profiler.report.json_ import peaks_object, to_json

        return to_json(peaks_object()).encode()
    if format_name == "csv":
        from profiler.report.csv_ import peaks_csv

        return _encode(peaks_csv())
    from profiler.report.ops_view import peaks_document

    return _draw(peaks_document(), format_name, style)


def render_html(diff: Diff, typed: Sequence[str] | None = None) -> bytes:
    """``profiler diff --html`` and ``profiler report``: one self-contained page.

    ``typed`` are the arguments that it is made from; None for those that the result implies.
    """
    from profiler.report.html import diff_page

    return _encode(diff_page(diff, typed))


def _draw(document: Document, format_name: str, style: Style) -> bytes:
    if format_name == "markdown":
        from profiler.report.markdown import render_markdown

        return _encode(render_markdown(document))
    from profiler.report.text import render_text

    return _encode(render_text(document, style))


def _encode(text: str) -> bytes:
    # Names of a damaged trace may hold lone surrogates, which UTF-8 has no bytes for.
    return text.encode("utf-8", "replace")
