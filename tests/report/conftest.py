"""Hand-built results: a training pair whose MFU is known, a serving pair whose MFU is not, and hostile names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl
import pytest

from profiler import results
from profiler.api import OpTable

S = 1e12  # picoseconds
MS = 1e9
US = 1e6
GIB = 1 << 30
PEAK = 1153.5

HOSTILE = (
    "<script>window.pwned=1</script>",
    "</style><img src=x onerror=window.pwned=1>",
    "]]><svg onload=window.pwned=1>",
    "{{7*7}} {% raw %} ${7*7}",
    "\u202eevil\u2066 \u200f\u061c",
    "|a|b|\n# heading\n- item\n@everyone #1 `code` **bold** ~~x~~ [link](javascript:alert(1))",
    "\x1b[31mred\x1b[0m\r\x00\x07",
    "[bold red]markup[/] :tada:",
    "'\"><a href='javascript:window.pwned=1'>x</a>",
    "'; window.pwned=1; //",
    '=HYPERLINK("http://example.invalid")',
    "&lt;b&gt; &amp; $x^2$ \\| \\\\|",
    "\ud800 lone surrogate",
    "漢字のオペ名 e\u0301\u0301\u0301 🧨",
    "n" * 1_000_000,
)

# category, family, phase, (calls, milliseconds) of baseline and of optimized
TRAINING = (
    ("compute", "splash forward", "re-run", (48, 402.0), (0, 0.0)),
    ("compute", "gmm", "re-run", (144, 391.0), (144, 470.0)),
    ("compute", "gmm", "student forward", (144, 388.0), (144, 446.0)),
    ("compute", "tgmm", "student backward", (144, 421.0), (144, 517.0)),
    ("compute", "gmm", "student backward", (144, 407.0), (144, 492.0)),
    ("compute", "splash backward dkv", "student backward", (48, 905.0), (48, 1268.0)),
    ("compute", "splash forward", "student forward", (48, 398.0), (48, 541.0)),
    ("compute", "splash forward", "teacher", (48, 402.0), (48, 544.0)),
    ("compute", "gmm", "teacher", (144, 380.0), (144, 440.0)),
    ("compute", "dense matmul", "student forward", (240, 212.0), (240, 316.0)),
    ("compute", "MoE dispatch", "student forward", (192, 188.0), (192, 279.0)),
    ("compute", "norm / elementwise", None, (960, 131.0), (960, 181.0)),
    ("compute", "loss and logits", None, (3, 96.0), (3, 143.0)),
    ("communication", "all-gather", None, (96, 302.0), (96, 220.0)),
    ("transfer", "host transfer", None, (8, 21.0), (8, 20.0)),
    ("wait", "wait", None, None, None),
    ("compute", "optimizer", "optimizer", (12, 62.0), (12, 62.0)),
    ("idle", "idle", None, (None, 186.0), (None, 161.0)),
)

SERVING = (
    ("compute", "dense matmul", None, (448, 42.31), (4, 0.29)),
    ("compute", "quantized matmul", None, (0, 0.0), (444, 25.11)),
    ("compute", "attention", None, (64, 17.01), (64, 20.54)),
    ("compute", "norm / elementwise", None, (386, 2.64), (1024, 11.46)),
    ("communication", "all-reduce", None, (129, 3.43), (129, 3.53)),
    ("compute", "copy / layout", None, (210, 1.46), (300, 2.49)),
    ("idle", "idle", None, (None, 0.4), (None, 0.6)),
)


def contribution(row: tuple[Any, ...], flops: tuple[float, float] | None, mfu: tuple[float, float]) -> Any:
    """The exact split of one category; ``flops`` are model TFLOP per device and step."""
    category, family, phase, base, opt = row
    (nb, tb), (no, to) = base or (None, 0.0), opt or (None, 0.0)
    tb, to = tb * MS, to * MS

    def split(xb: float, xo: float) -> tuple[float, float]:
        if not nb or not no:
            return (0.0, xb - xo) if nb is None else (xb - xo, 0.0)
        calls = (nb - no) * (xb / nb + xo / no) / 2
        return calls, (xb - xo) - calls

    calls_time, per_call_time = (-part for part in split(tb, to))
    points: tuple[float | None, float | None, float | None] = (None, None, None)
    if flops is not None:
        scale = 100 * PEAK * mfu[0] * mfu[1] / S
        calls, per_call = (scale * part for part in split(tb / flops[0], to / flops[1]))
        points = (calls + per_call, calls, per_call)
    return results.Contribution(
        category, family, phase, points[0], tb, to, nb, no, points[1], points[2], to - tb, calls_time, per_call_time
    )


def summary_of(
    label: str,
    rows: tuple[tuple[Any, ...], ...],
    side: int,
    tflops: float | None = None,
    device: str = "TPU7x",
    peak: float | None = PEAK,
    devices: int = 4,
) -> results.Summary:
    families = []
    for category, family, phase, *pair in rows:
        if pair[side] is not None and pair[side][1]:
            families.append((category, family, phase, pair[side][0], pair[side][1] * MS))
    total = sum(row[4] for row in families)
    idle = sum(row[4] for row in families if row[0] == "idle")
    mfu = tflops / (total / S * peak) if tflops and peak else None
    return results.Summary(
        file=f"{label}.xplane.pb",
        label=label,
        kind="recorded",
        devices=tuple(results.DeviceInfo(f"TPU:{i}", device, peak, 96 * GIB, "host-a") for i in range(devices)),
        steps=results.StepStats("Steps line", 12, total, total * 0.998, total * 0.99, total * 1.02),
        busy_fraction=1 - idle / total,
        mfu=mfu,
        hfu=mfu * 1.28 if mfu else None,
        mfu_inputs=results.MfuInputs(tflops, total, peak, "MaxText, causal halved" if tflops else None),
        families=tuple(results.FamilyRow(*row, row[4] / total) for row in families),
        kernels=(
            results.KernelRow("splash forward", "student forward", 48, 1, 8.29 * MS, 398 * MS, 382.0),
            results.KernelRow("gmm", "teacher", 144, 3, 2.64 * MS, 380 * MS, None),
        ),
        remat=results.Remat(192 - 48 * side, 793 * MS, 0.15, (results.RematFamily("gmm", 144, 391 * MS),)),
        memory=results.Memory(61 * GIB + side * 7 * GIB, 70 * GIB, None, int(94.74 * GIB)),
        run_info={"git_commit": "abc", "loss": float("nan")},
        warnings=(results.Note("cut-step", "the last step is cut and left out"),),
    )


def op_frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    schema = {
        **dict.fromkeys(("baseline_op", "optimized_op", "family", "phase", "match"), pl.String),
        "confidence": pl.Float64,
        "evidence": pl.String,
        **dict.fromkeys(("baseline_time_ps", "optimized_time_ps", "delta_time_ps"), pl.Float64),
        **dict.fromkeys(("baseline_calls", "optimized_calls", "baseline_mean_ps", "optimized_mean_ps"), pl.Float64),
        **dict.fromkeys(("calls_time_ps", "per_call_time_ps"), pl.Float64),
        **dict.fromkeys(("baseline_instructions", "optimized_instructions"), pl.Int64),
        **dict.fromkeys(("program", "name_stack", "source"), pl.String),
    }
    return pl.DataFrame(rows, schema=schema).sort(pl.col("delta_time_ps").abs(), descending=True, maintain_order=True)


def op_row(base: str | None, opt: str | None, match: str, nb: float, tb: float, no: float, to: float, **kw: Any) -> Any:
    """One matched op; times in picoseconds."""
    return {
        "baseline_op": base,
        "optimized_op": opt,
        "family": kw.get("family", "other"),
        "phase": kw.get("phase"),
        "match": match,
        "confidence": 0.9,
        "evidence": "name stack, shapes",
        "baseline_time_ps": tb,
        "optimized_time_ps": to,
        "delta_time_ps": to - tb,
        "baseline_calls": nb,
        "optimized_calls": no,
        "baseline_mean_ps": tb / nb if nb else None,
        "optimized_mean_ps": to / no if no else None,
        "calls_time_ps": 0.0,
        "per_call_time_ps": to - tb,
        "baseline_instructions": 1,
        "optimized_instructions": 1,
        "program": "jit_train_step",
        "name_stack": "jit(train_step)/jvp(decoder)/while/body/moe",
        "source": "layers/moe.py:412",
    }


@dataclass(frozen=True)
class Make:
    """Factories of results."""

    hostile: tuple[str, ...] = field(default=HOSTILE, repr=False)  # a megabyte of it

    def training(self, ops: int = 30) -> results.Diff:
        """A pair with MFU: 1219.56 TFLOP at batch 4 against 1829.35 at batch 6."""
        flops = (1219.56, 1829.35)
        base, opt = (summary_of(name, TRAINING, i, flops[i]) for i, name in enumerate(("qwen3-base", "qwen3-opt")))
        assert base.mfu is not None
        assert opt.mfu is not None
        mfu = (base.mfu, opt.mfu)
        rows = [
            op_row("splash_fwd.12", None, "removed", 48, 402 * MS, 0, 0, family="splash forward", phase="re-run"),
            op_row(
                "gmm_tile_512_1024_1024.3", "gmm_tile_512_2048_768.3", "changed", 144, 391 * MS, 144, 470 * MS,
                family="gmm", phase="re-run",
            ),
            op_row("fusion.7", "quant_kernel.1", "replaced", 48, 21 * MS, 48, 14 * MS, family="dense matmul"),
            op_row(None, "convert_fusion.99", "added", 0, 0, 96, 9 * MS, family="norm / elementwise"),
            *(
                op_row(f"fusion.{i}", f"fusion.{i + 3}", "same", 48, i * MS, 48, i * MS * 1.01, family="elementwise")
                for i in range(1, ops)
            ),
        ]  # fmt: skip
        contributions = tuple(contribution(row, flops, mfu) for row in TRAINING)
        times = (base.steps.mean_ps, opt.steps.mean_ps)
        scale = flops[0] / flops[1]  # times are for the work of one baseline step
        return results.Diff(
            comparable=True,
            normalization="flop",
            verdict=f"{mfu[1] / mfu[0]:.2f}× the throughput: MFU {mfu[0]:.1%} → {mfu[1]:.1%}; most of it from splash "
            "forward no longer being run again in the backward pass.",
            baseline=base,
            optimized=opt,
            delta=results.Delta(
                (mfu[1] - mfu[0]) * 100,
                mfu[1] / mfu[0],
                times[1] / times[0],
                True,
                (mfu[0] / mfu[1] - 0.004, mfu[0] / mfu[1] + 0.004),
                times[0],
                times[1] * scale,
            ),
            contributions=tuple(
                replace(item, optimized_time_ps=item.optimized_time_ps * scale)
                for item in contributions
            ),
            matched_time_fraction=0.981,
            baseline_matched_fraction=0.985,
            optimized_matched_fraction=0.977,
            ops=_scaled(op_frame(rows), scale),
            knobs=(
                results.Knob("per_device_batch_size", 4, 6),
                results.Knob("remat_policy", None, "custom", baseline_set=False),
                results.Knob("context", "remat", "device"),
                results.Knob("sa_q_layout", "HEAD_DIM_MINOR", "SEQ_MINOR"),
                results.Knob("wi_tile_fwd_embed_dim", None, 2048, baseline_set=False),
            ),
            findings=(
                results.Finding(
                    "Splash forward runs once per layer instead of twice", 1.62, None, ("context", "remat_policy"),
                    ("48 re-run calls → 0", "402 ms of the baseline's step"), "high",
                ),
                results.Finding("gmm tiles", 0.9, None, ("wi_tile_fwd_embed_dim",), ("3.3 ms a call",), "medium"),
            ),
            effects=(
                results.KnobEffect(
                    "rematerialisation", ("remat_policy", "context"), "seen",
                    "splash forward re-runs 48 → 0 per step, +1.62 MFU points", 1.62, -402 * MS, 12 * GIB,
                ),
                results.KnobEffect("splash layouts", ("sa_q_layout",), "none seen", "no visible effect", 0.01, -1.0),
                results.KnobEffect("rest", (), "no knob", "idle 186 → 161 ms", 0.1, -25 * MS),
            ),
            suggestions=(results.Finding("keep moe_mlpwo", 0.5, -100 * MS, ("moe_mlpwo",), ("8 GiB",), "medium"),),
            loss=results.LossDelta(
                "steps", False, 0.03, 0.01, 14, 20, (3.0, 2.0), (3.0, 2.1), None, (20.0, 8.0), (), "differs by 3 %"
            ),
            warnings=(results.Note("batch-differs", "the batch size differs: judged per model FLOP, not per step"),),
        )  # fmt: skip

    def complete(self) -> results.Diff:
        """The training pair with everything that the HTML report draws: HBM, communication, steps, tiles."""
        diff = self.training()
        group, change = results.MemoryGroupDelta, results.MemoryTensorDelta
        phases = ("teacher", "student forward", "re-run", "student backward", "optimizer")
        curves = (
            results.MemoryTrack(
                1990,
                tuple(range(0, 2000, 10)),
                tuple(peak * GIB - abs(120 - i) * GIB // 8 for i in range(200)),
                tuple(phases[i // 40] for i in range(200)),
            )
            for peak in (61, 68)
        )
        memory = results.MemoryDelta(
            "jit_step", "jit_step",
            (group("parameters", 20 * GIB, 20 * GIB), group("saved for backward", 41 * GIB, 48 * GIB)),
            (change("grew", *["saved for backward"] * 2, "layers", "mlp/out", "bf16[4]", "bf16[6]", GIB, 8 * GIB, 1, 1),
             change("came", "temporaries", "re-run", None, None, None, "f32[6]", 0, 0, 0, 1)),
            GIB, GIB // 2, 30 * GIB, 26 * GIB, *curves,
        )  # fmt: skip
        comm = results.CommDelta(
            (results.CommDeltaRow("communication", "all-gather", "fsdp", 96, 96, 400 * MS, 380 * MS, 302 * MS, 220 * MS,
                                  98 * MS, 160 * MS),)
        )  # fmt: skip
        steps = [
            tuple(side.steps.mean_ps * (1 + 0.004 * ((7 * i) % 5 - 2)) for i in range(12))
            for side in (diff.baseline, diff.optimized)
        ]
        sides = [
            replace(
                side,
                kernels=(
                    *side.kernels,
                    results.KernelRow(
                        "splash_mha_fwd", "re-run", 48 * (1 - i), 1 - i, 8.3 * MS, 398 * MS, 380.0,
                        "splash forward", tiles=({"block_q": 1024, "q_layout": ("HEAD_DIM_MINOR", "SEQ_MINOR")[i]},),
                    ),
                ),
                phases=(results.PhaseRow("re-run", 402 * MS, 0.07),),
                tokens_per_s=(7000.0, 8400.0)[i],
                run_info={"config": {"remat_policy": ("full", "custom")[i], "context": ("remat", "device")[i]},
                          "versions": {"jax": "0.12.0"}},
            )
            for i, side in enumerate((diff.baseline, diff.optimized))
        ]  # fmt: skip
        return replace(
            diff,
            baseline=sides[0],
            optimized=sides[1],
            memory=memory,
            communication=comm,
            steps=results.StepLengths(steps[0], steps[1], 12, 12),
        )

    def compiled(self) -> results.Diff:
        """The same as two compiled profiles: times are estimates with a band, and nothing was trained."""
        diff = self.complete()
        base, opt = (replace(side, kind="compiled") for side in (diff.baseline, diff.optimized))
        ratio = diff.delta.optimized_time_ps / diff.delta.baseline_time_ps
        delta = replace(diff.delta, interval=(ratio, ratio), band=(ratio - 0.05, ratio + 0.04))
        return replace(diff, baseline=base, optimized=opt, delta=delta, loss=None)

    def worst(self, names: tuple[str, ...] = HOSTILE) -> results.Diff:
        """Hostile text in everything that the HTML report draws too."""
        evil, diff = self.evil(names), self.complete()
        assert diff.memory is not None
        assert diff.memory.baseline_curve is not None
        curve = replace(diff.memory.baseline_curve, phases=tuple(names[i % len(names)] for i in range(200)))
        row = diff.memory.tensors[0]
        memory = replace(
            diff.memory,
            groups=tuple(results.MemoryGroupDelta(name, GIB, 2 * GIB) for name in names),
            tensors=tuple(replace(row, group=name, tensor=name, stack=name, baseline_shape=name) for name in names),
            baseline_curve=curve,
            optimized_curve=curve,
        )
        comm = results.CommDelta(
            tuple(results.CommDeltaRow("communication", name, name, 1, 1, 1e9, 2e9, 1e9, 2e9, 0, 0) for name in names)
        )
        info = {"config": dict(zip(names, names, strict=True)), **dict(zip(names, names, strict=True))}
        tiles = tuple({name: name} for name in names[-8:])
        sides = [
            replace(
                side,
                run_info=info,
                kernels=tuple(replace(row, family=f"gmm {row.kernel}", tiles=tiles) for row in side.kernels),
            )
            for side in (evil.baseline, evil.optimized)
        ]
        return replace(evil, baseline=sides[0], optimized=sides[1], memory=memory, communication=comm, steps=diff.steps)

    def unsplit(self) -> results.Diff:
        """The training pair per step: MFU is known on both sides, and its delta is not split."""
        diff = self.training()
        scale = 1219.56 / 1829.35
        opt = diff.optimized.steps.mean_ps
        parts = tuple(
            replace(
                item,
                optimized_time_ps=item.optimized_time_ps / scale,
                mfu_points=None, calls_points=None, per_call_points=None,
            )
            for item in diff.contributions
        )  # fmt: skip
        return replace(
            diff,
            normalization="step",
            delta=replace(diff.delta, optimized_time_ps=opt, significant=None, interval=None),
            contributions=parts,
            warnings=(results.Note("mfu_not_split", "normalised per step, so the time is split and not the MFU"),),
        )

    def serving(self) -> results.Diff:
        """A pair without model FLOPs or peak: the split is in time."""
        base, opt = (
            summary_of(name, SERVING, i, device="TPU", peak=None, devices=2) for i, name in enumerate(("bf16", "fp4"))
        )
        unit = {"unit": "run", "count": 1}
        base, opt = (
            replace(side, steps=replace(side.steps, **unit), memory=results.Memory(), remat=results.Remat(0, 0, 0))
            for side in (base, opt)
        )
        times = (base.steps.mean_ps, opt.steps.mean_ps)
        rows = [
            op_row("convolution_fusion.8", "quantized_matmul_kernel.2", "replaced", 444, 42 * MS, 444, 25 * MS),
            op_row("bkvp_64.1", "bkvp_32.1", "changed", 64, 17.01 * MS, 64, 20.54 * MS, family="attention"),
        ]
        return results.Diff(
            comparable=True,
            normalization="run",
            verdict="5.1 % faster: quantized matmul kernels replace the dense matmuls.",
            baseline=base,
            optimized=opt,
            delta=results.Delta(None, times[0] / times[1], times[1] / times[0], None, None, *times),
            contributions=tuple(contribution(row, None, (0, 0)) for row in SERVING),
            matched_time_fraction=0.93,
            baseline_matched_fraction=0.97,
            optimized_matched_fraction=0.86,
            ops=op_frame(rows),
        )

    def evil(self, names: tuple[str, ...] = HOSTILE) -> results.Diff:
        """The training pair with hostile text in every place that takes text of a trace."""
        diff = self.training()
        wide = " ".join(names)
        notes = tuple(results.Note(name, name) for name in names)
        side = {
            "file": names[0],
            "warnings": notes,
            "families": tuple(
                replace(row, family=names[i % len(names)]) for i, row in enumerate(diff.baseline.families)
            ),
            "kernels": tuple(results.KernelRow(name, name, 1, None, 1e9, 1e9, None) for name in names),
            "devices": (results.DeviceInfo(wide, names[-1], PEAK, None, names[0], wide),),
        }
        rows = [
            op_row(name, names[-1 - i], "changed", 1, 1e9, 1, 2e9, family=name, phase=name)
            | {"program": name, "name_stack": name, "source": name}
            for i, name in enumerate(names)
        ]
        return replace(
            diff,
            verdict=wide,
            baseline=replace(diff.baseline, label=wide, **side),
            optimized=replace(diff.optimized, label=names[0], **side),
            contributions=tuple(
                replace(item, family=names[i % len(names)], phase=names[-1 - i % len(names)])
                for i, item in enumerate(diff.contributions)
            ),
            ops=op_frame([{k: _utf8(v) for k, v in row.items()} for row in rows]),
            knobs=tuple(results.Knob(name, name, [name]) for name in names),
            findings=tuple(results.Finding(name, 1.0, None, (name,), (name,)) for name in names),
            suggestions=tuple(results.Finding(name, 1.0, None, (name,), (name,)) for name in names),
            effects=tuple(results.KnobEffect(name, (name,), "seen", name, 1.0, 1.0) for name in names),
            loss=replace(diff.loss, text=wide, settings=names),
            warnings=notes,
        )

    def many_ops(self, count: int) -> results.Diff:
        """The training pair with thousands of op rows of realistic names."""
        diff = self.training()
        rows = [
            op_row(f"multiply_reduce_fusion.{i}.clone", f"multiply_reduce_fusion.{i + 7}.clone", "changed", 48,
                   (count - i) * US, 48, (count - i) * US * 1.5, family="norm / elementwise", phase="student backward")
            for i in range(count)
        ]  # fmt: skip
        return replace(diff, ops=op_frame(rows))

    def op_table(self, names: tuple[str, ...] = ("fusion.1", "splash_fwd.2", "copy.3")) -> OpTable:
        """A per-op table."""
        rows = [
            {
                "program": "jit_step",
                "program_id": 12190760917235803885 + i,
                "op": _utf8(name),
                "category": "loop fusion",
                "family": "norm / elementwise",
                "phase": None,
                "occurrences": 48,
                "total_time_ps": 10 * MS / (i + 1),
                "self_time_ps": 9 * MS / (i + 1),
                "flops": 1e12 if i == 0 else 0.0,
                "bytes_accessed": 4e9,
                "name_stack": "jit(step)/jvp(f)",
                "source": "a.py:1",
            }
            for i, name in enumerate(names)
        ]
        frame = pl.DataFrame(rows, schema_overrides={"program_id": pl.UInt64, "phase": pl.String})
        return OpTable("a.xplane.pb", frame, frame.clear(), 2, (results.Note("no-hlo", "no HLO: no name stacks"),))


def _scaled(frame: pl.DataFrame, scale: float) -> pl.DataFrame:
    scaled = frame.with_columns(pl.col("optimized_time_ps") * scale)
    delta = pl.col("optimized_time_ps") - pl.col("baseline_time_ps")
    return scaled.with_columns(delta.alias("delta_time_ps")).sort(
        pl.col("delta_time_ps").abs(), descending=True, maintain_order=True
    )


def _utf8(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


@pytest.fixture(scope="session")
def make() -> Make:
    return Make()


@pytest.fixture(scope="session")
def render_text_of() -> Callable[..., str]:
    """The text a user sees for a diff or a summary."""
    from profiler.report import render_diff, render_summary
    from profiler.report.output import Style

    def render(result: results.Diff | results.Summary, style: Style | None = None, top: int | None = None) -> str:
        draw: Any = render_diff if isinstance(result, results.Diff) else render_summary
        return str(draw(result, "text", style or Style(), top).decode())

    return render
