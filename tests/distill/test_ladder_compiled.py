"""A ladder whose rungs are compiled: the parts of the change, what does not fit, and what is written."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace

import pytest

import profiler
from distill import cli, points
from distill.aot import Cache, OutOfMemory, pool
from distill.config import load
from distill.ladder import climb_compiled, parts, rungs
from distill.points import Estimate, Lead, Point
from profiler.errors import UsageError

GIB = 1 << 30
NAMES = ["baseline", "per_device_batch_size", "rematerialisation", "sa_q_layout", "grouped matmul tiles"]
MFUS = [0.2, 0.21, 0.231, 0.231, 0.26]


def an_estimate(mfu):
    return Estimate(1.0, (0.9, 1.2), 1e-4, 1e4, (8e3, 1.1e4), mfu, (0.8 * mfu, 1.1 * mfu))


def point(mfu):
    return Point("rung", problem=None if mfu else "needs too much", estimate=an_estimate(mfu) if mfu else None)


@pytest.fixture
def made(monkeypatch, compiled):
    """Compiles without a compiler: the rungs of the qwen3 case in turn get ``MFUS``; those in ``full`` do not fit."""
    full, base = set(), load("qwen3-30b-base").config
    sizes = {}

    def compile_step(config, topology, *, quick, progress, cache):
        number = sum(
            getattr(config, key) != getattr(base, key)
            for key in ("per_device_batch_size", "context", "sa_q_layout", "wi_tile_fwd_embed_dim")
        )
        error = OutOfMemory(20 * GIB, 16 * GIB, ()) if number in full else None
        sizes[number] = config
        return compiled(config, topology, quick=quick, error=error)

    def export(compiled, asked, path, *, coarse, kernels):
        path.write_text(asked["sa_q_layout"])
        return path

    def estimated(profile):
        return an_estimate(MFUS[int(profile.name[0])])

    def ahead(one, other, per):
        ratio = one.estimate.mfu / other.estimate.mfu
        return Lead(ratio, (0.97 * ratio, 1.04 * ratio), () if ratio != 1 else ("sa_q_layout differs: no one knows",))

    monkeypatch.setattr(pool, "compile_step", compile_step)
    monkeypatch.setattr(points, "export_profile", export)
    monkeypatch.setattr(points, "estimated", estimated)
    monkeypatch.setattr(points, "ahead", ahead)
    monkeypatch.setattr(points, "require", dict)
    return full


def ladder(capsys, out, *arguments):
    command = ["ladder", "qwen3-30b-base", "qwen3-30b-opt", "--compiled", "--topology", "tpu7x-4x4x4", "-o", str(out)]
    code = cli.main([*command, *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize(
    "mfus", [MFUS, [0.2, None, 0.23], [None, 0.2, None, None, 0.1 + 0.2], [0.2, 0.3, None], [0.2], [None, None]]
)
def test_the_parts_sum_to_the_whole_change(mfus):
    found = parts([point(mfu) for mfu in mfus])
    fitting = [mfu for mfu in mfus if mfu] or [0.0]
    assert sum(part.points for part in found if part) == pytest.approx(100 * (fitting[-1] - fitting[0]), abs=1e-9)
    product = 1.0
    for part in filter(None, found):
        product *= part.lead.ratio
    assert product == pytest.approx(fitting[-1] / fitting[0] if fitting[0] else 1.0, rel=1e-9)
    assert sum(part is not None for part in found) == max(0, sum(map(bool, mfus)) - 1)


def test_a_rung_above_one_that_does_not_fit_is_held_against_the_last_that_fits():
    found = parts([point(mfu) for mfu in (0.2, None, None, 0.23)])
    assert found[:3] == [None, None, None]
    assert found[3].since == 0
    assert found[3].points == pytest.approx(3.0)


def test_the_table_says_what_each_rung_is_worth(capsys, made, tmp_path):
    code, out, err = ladder(capsys, tmp_path)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith(
        "Estimated MFU 20.0 % → 26.0 %, +6.00 points, from rung 0 (baseline) to rung 4 (grouped matmul tiles), "
        "on tpu7x-4x4x4, 128 devices"
    )
    rows = dict(zip(NAMES, lines[4:9], strict=True))
    assert all(name in row for name, row in rows.items())
    assert rows["baseline"].split()[-3:] == ["–", "–", "–"]
    assert rows["per_device_batch_size"].split()[-4:] == ["+1.00", "×1.050", "(1.018–1.092)", "0"]
    assert rows["sa_q_layout"].split()[-4:] == ["0.00", "×1.000", "(0.970–1.040)", "2"]
    assert "Estimates are coarse" in out
    assert "Not in the estimate of rung 3: sa_q_layout differs: no one knows" in lines
    assert " 2 rematerialisation: remat_policy=custom, context=device" in lines
    assert (tmp_path / "ladder.txt").read_text() == out
    files = sorted(path.name for path in tmp_path.glob("*.pb"))
    assert files == [f"{number}-{name.replace(' ', '_')}.xplane.pb" for number, name in enumerate(NAMES)]
    assert "rung 1 (per_device_batch_size): fits" in err


def test_a_rung_that_does_not_fit_says_so_and_has_no_profile(capsys, made, tmp_path):
    made |= {1, 4}
    code, out, _ = ladder(capsys, tmp_path)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].endswith("94.75 GiB each); the last rung does not fit") or "the last rung does not fit" in lines[0]
    assert "Estimated MFU 20.0 % → 23.1 %, +3.10 points" in lines[0]
    assert lines[5].split()[2] == "no"
    assert lines[5].split()[-3:] == ["–", "–", "–"]
    assert lines[6].split()[-4:] == ["+3.10", "×1.155", "(1.120–1.201)", "0"]
    assert "rung 1 (per_device_batch_size): needs 20.00 GiB of HBM, 16.00 GiB are available" in out
    assert not (tmp_path / "1-per_device_batch_size.xplane.pb").exists()


def test_a_baseline_that_does_not_fit_is_said_to(capsys, made, tmp_path):
    made |= {0}
    _, out, _ = ladder(capsys, tmp_path)
    assert "from rung 1 (per_device_batch_size)" in out.splitlines()[0]
    assert out.splitlines()[0].endswith("; the baseline does not fit")


def test_where_no_rung_fits_the_exit_code_is_1(capsys, made, tmp_path):
    made |= set(range(5))
    code, out, _ = ladder(capsys, tmp_path)
    assert code == 1
    assert out.startswith("No rung fits tpu7x-4x4x4")
    assert "Estimates" not in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--topology", "v5e-4"], "--topology needs --compiled"),
        (["--full"], "--full needs --compiled"),
        (["--compiled", "--steps", "3"], "--steps is for runs"),
        (["--compiled", "--devices", "2"], "--devices is for runs"),
        (["--compiled"], "names no hardware"),
        (["--compiled", "--topology", "v5e-5"], "no slice of size 5"),
    ],
)
def test_options_that_do_not_go_together_are_a_usage_error(capsys, tmp_path, arguments, says):
    code = cli.main(["ladder", "tiny-qwen3-base", "tiny-qwen3-opt", "-o", str(tmp_path / "out"), *arguments])
    out = capsys.readouterr()
    assert (code, out.out) == (2, "")
    assert says in out.err


def test_equal_recipes_are_no_ladder(tmp_path):
    with pytest.raises(UsageError, match="are the same configuration"):
        climb_compiled("tiny-qwen3-opt", "tiny-qwen3-opt", "v5e-4", tmp_path)


# --- the real compiler -----------------------------------------------------------------------------------------------

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None and not os.environ.get("CI"),
    reason="no TPU compiler: libtpu is missing",
)


@needs_libtpu
@pytest.mark.slow
def test_a_real_ladder_of_compiles_sums_to_the_diff_of_its_ends(tmp_path):
    overrides = [
        "student_overrides.base_num_decoder_layers=2",
        "teacher_overrides.base_num_decoder_layers=2",
        "dtype=bfloat16",
        "max_target_length=256",
    ]
    text, fits = climb_compiled(
        "tiny-qwen3-base", "tiny-qwen3-opt", "tpu7x-8", tmp_path, overrides=overrides, cache=Cache(tmp_path / "cache")
    )
    assert fits
    sides = [load(f"tiny-qwen3-{side}", overrides).config for side in ("base", "opt")]
    assert len(list(tmp_path.glob("*.xplane.pb"))) == len(rungs(*sides)) == 3
    found = [points.estimated(path) for path in sorted(tmp_path.glob("*.xplane.pb"))]
    split = parts([replace(point(0.1), estimate=each) for each in found])
    ends = sorted(map(str, tmp_path.glob("*.xplane.pb")))
    whole = profiler.diff(ends[0], ends[-1]).delta.mfu_points
    assert sum(part.points for part in split if part) == pytest.approx(whole, abs=1e-9)
    assert split[1].points > 0  # keeping the context saves the second forward pass
    assert f"{whole:+.2f} points" in text
