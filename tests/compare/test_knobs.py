"""What differs between two configurations: defaults, groups, flags, and what a knob is tied to."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from profiler import api
from profiler.compare.attribute import Work, contributions
from profiler.compare.effects import Per, effects, groups_of, knobs_text, parts_of
from profiler.compare.knob_table import entry, table
from profiler.compare.knobs import config_delta, xla_flags
from profiler.compare.price import Price
from profiler.report import render_config
from profiler.report.knobs_view import brace
from profiler.report.output import Style
from profiler.results import FamilyRow

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "distill" / "recipes"


def delta(before: dict, after: dict, **info):
    return config_delta({"config": before, **info}, {"config": after, **info})


def changes(found) -> dict:
    return {knob.key: (knob.baseline, knob.optimized) for knob in found.knobs}


def test_a_key_that_one_side_lacks_has_its_default() -> None:
    (knob,) = delta({}, {"wi_tile_fwd_batch_seq": 1024, "steps": 1} | {}, mesh={"data": 1}).knobs[:1] or (None,)
    assert knob is None  # a side without a configuration says nothing
    (knob,) = delta({"steps": 1}, {"steps": 1, "wi_tile_fwd_batch_seq": 1024}).knobs
    assert (knob.baseline, knob.baseline_set, knob.baseline_default) == (512, False, True)
    assert (knob.optimized, knob.optimized_set, knob.optimized_default) == (1024, True, False)


def test_an_unknown_default_is_unknown() -> None:
    (knob,) = delta({"steps": 1}, {"steps": 1, "my_own_key": 3}).knobs
    assert (knob.baseline, knob.baseline_default, knob.moves) == (None, False, None)


def test_a_default_that_is_spelled_out_is_no_difference() -> None:
    found = delta({"steps": 1, "remat_policy": "full"}, {"steps": 1})
    assert found.knobs == ()
    assert found.written_defaults == ("remat_policy",)
    assert found.same == 2


def test_an_include_that_is_not_read_hides_defaults() -> None:
    found = delta({"base_config": "mine.yml", "steps": 1}, {"base_config": "mine.yml", "context": "device"})
    knob = next(each for each in found.knobs if each.key == "context")
    assert (knob.baseline, knob.baseline_default) == (None, False)
    assert {note.code for note in found.warnings} == {"include_not_read"}
    with_defaults = delta({"base_config": "configs/base.yml"}, {"base_config": "base.yml", "context": "device"})
    assert changes(with_defaults)["context"] == ("remat", "device")


def test_flags_versions_and_mesh_are_compared_entry_by_entry() -> None:
    before = {"xla_flags": ["--xla_a=1", "--xla_b"], "versions": {"jax": "1"}, "mesh": {"fsdp": 32}}
    after = {"xla_flags": "--xla_a=2 --xla_b", "versions": {"jax": "2"}, "mesh": {"fsdp": 64}}
    assert changes(config_delta(before, after)) == {
        "--xla_a": ("1", "2"), "versions.jax": ("1", "2"), "mesh.fsdp": (32, 64),
    }  # fmt: skip
    assert changes(config_delta({"xla_flags": []}, {"xla_flags": ["--xla_a=1"]})) == {"--xla_a": (None, "1")}
    assert changes(config_delta({}, after)) == {}
    assert xla_flags("--xla_a=1 --xla_a=2") == {"--xla_a": "2"}


def test_knobs_of_one_group_stand_together() -> None:
    found = delta({"a": 1}, {"a": 1, "context": "device", "per_device_batch_size": 6, "remat_policy": "custom"})
    assert [knob.key for knob in found.knobs] == ["context", "remat_policy", "per_device_batch_size"]


@pytest.mark.parametrize("pair", ["qwen3-30b", "gpt-oss-20b"])
def test_the_recipes_differ_in_what_their_authors_changed(pair) -> None:
    found = api.config(RECIPES / f"{pair}-base.yml", RECIPES / f"{pair}-opt.yml")
    tiles = {knob.key: (knob.baseline, knob.optimized) for knob in found.knobs if "_tile_" in knob.key}
    others = {key: values for key, values in changes(found).items() if key not in tiles}
    remat = {"remat_policy": ("full", "custom"), "context": ("remat", "device")}
    if pair == "qwen3-30b":
        assert others == remat | {"per_device_batch_size": (4, 6), "sa_q_layout": ("HEAD_DIM_MINOR", "SEQ_MINOR")}
        assert len(tiles) == 12
        assert set(tiles.values()) == {(1024, 2048), (1024, 768)}
    else:
        kv = dict.fromkeys(("sa_block_kv_compute", "sa_block_kv_dkv_compute"), (2048, 1024))
        mesh = {"ici_data_parallelism": (4, 2), "ici_fsdp_parallelism": (32, 64)}
        assert others == remat | kv | mesh
        assert len(tiles) == 6
        assert set(tiles.values()) == {(512, 1024)}


def test_the_table_has_the_trainers_keys_and_defaults() -> None:
    schema = pytest.importorskip("distill.settings.schema", exc_type=ImportError)
    known = table()
    for key, value in schema.Config().to_dict().items():
        if key not in ("xla_flags", "student_overrides", "teacher_overrides", "model_name"):
            assert key in known, key
            if isinstance(known[key].default, str | int | float):
                assert known[key].default == value, key
    assert entry("ici_tensor_parallelism").group == "mesh"


def test_config_as_json_follows_its_schema_and_text_names_every_group() -> None:
    found = api.config(RECIPES / "qwen3-30b-base.yml", RECIPES / "qwen3-30b-opt.yml")
    schema = json.loads((ROOT / "docs" / "schema" / "config.schema.json").read_text("utf-8"))
    jsonschema.validate(json.loads(render_config(found, "json", Style())), schema)
    text = render_config(found, "text", Style()).decode()
    assert "{wi,wo}_tile_{dlhs,drhs,fwd}_mlp_dim    default 1024    768" in text
    assert "can move: time per call of gmm dlhs, tgmm, gmm forward" in " ".join(text.split())
    assert "wi_tile_fwd_mlp_dim" in render_config(found, "text", Style(), 0).decode()
    assert len(render_config(found, "csv", Style()).decode().splitlines()) == 17


def test_keys_that_are_all_combinations_of_words_are_one_pattern() -> None:
    assert brace(["wi_tile_a", "wi_tile_b", "wo_tile_a", "wo_tile_b"]) == "{wi,wo}_tile_{a,b}"
    assert brace(["wi_tile_a", "wo_tile_b"]) is None
    assert brace(["a", "a_b"]) is None


# --- what was seen of them


def side(rows, flops: float = 4e12):
    from types import SimpleNamespace

    families = tuple(FamilyRow("compute", family, phase, calls, time, 0.0) for family, phase, calls, time in rows)
    step = sum(row.time_ps_per_step for row in families)
    return SimpleNamespace(
        summary=SimpleNamespace(families=families), times=SimpleNamespace(step_ps=step), model_flops=flops,
        peak_tflops=1153.5,
    )  # fmt: skip


BASE = [("splash forward", "re-run", 48, 480e9), ("gmm forward", "teacher", 96, 960e9), ("router", None, 9, 90e9)]
OPT = [("gmm forward", "teacher", 96, 720e9), ("router", None, 9, 90e9), ("norm / elementwise", None, 9, 20e9)]


def seen(knobs, unseen=None, price=None):
    parts = contributions(side(BASE), side(OPT), Work("flop", 4e12, 4e12))
    groups = groups_of(knobs, unseen or {})
    found = effects(groups, parts_of(parts, groups), price or Price(), 1530e9, Per())
    return {each.group: each for each in found}, parts


def test_re_runs_go_to_remat_keys_and_time_per_call_to_tiles() -> None:
    knobs = delta(
        {"a": 1}, {"a": 1, "remat_policy": "custom", "context": "device", "wi_tile_fwd_mlp_dim": 768, "adam_b1": 0.8}
    ).knobs
    found, parts = seen(knobs, price=Price(kept={"x/attention": (0, 12 << 30)}, movers=("rematerialisation",)))
    remat, tiles = found["rematerialisation"], found["grouped matmul tiles"]
    assert remat.text.startswith("splash forward re-runs 48 → 0 per step, ")
    assert "HBM +12.00 GiB kept for the backward pass (attention)" in remat.text
    assert remat.memory_bytes == 12 << 30
    assert tiles.text.startswith("gmm forward 10.00 ms → 7.50 ms a call, ")
    assert (remat.time_ps, tiles.time_ps) == pytest.approx((-480e9, -240e9))
    assert found["adam_b1"].status == "no time"
    assert found["rest"].knobs == ("context", "remat_policy")
    assert sum(each.mfu_points or 0 for each in found.values()) == pytest.approx(
        sum(part.mfu_points for part in parts), abs=1e-9
    )


def test_an_effect_without_a_knob_and_a_knob_without_an_effect_are_listed_as_such() -> None:
    found, _ = seen(delta({"a": 1}, {"a": 1, "sa_block_q": 1024}).knobs)
    assert found["splash tiles"].status == "none seen"
    assert found["splash tiles"].text.startswith("no visible effect on time")
    assert found["rest"].knobs == ()
    assert found["rest"].text.endswith("no knob that differs explains it")


def test_what_no_estimate_sees_is_not_estimated() -> None:
    found, _ = seen(
        delta({"a": 1}, {"a": 1, "sa_q_layout": "SEQ_MINOR"}).knobs, {"sa_q_layout": "layouts are left out"}
    )
    assert found["splash layouts"].text == "not estimated: layouts are left out"
    assert found["splash layouts"].mfu_points is None


def test_what_two_groups_move_is_shared() -> None:
    found, _ = seen(delta({"a": 1}, {"a": 1, "remat_policy": "custom", "gradient_accumulation_steps": 2}).knobs)
    assert found["rematerialisation"].shared == ("gradient_accumulation_steps",)


def test_a_value_of_any_length_stays_a_part_of_a_sentence() -> None:
    (knob,) = delta({"a": 1, "dtype": "x"}, {"a": 1, "dtype": ["y"] * 1000}).knobs
    assert len(knobs_text([knob])) < 60
    assert knobs_text(delta({"a": 1}, {"a": 1, "use_tokamax_splash": True}).knobs) == "use_tokamax_splash=true"


def test_keys_and_values_of_any_kind_are_compared() -> None:
    found = delta(
        {1: {"a": [1, {}]}, "nan": float("nan"), "b": True}, {1: {"a": [1, {"x": 2}]}, "nan": float("nan"), "b": 1}
    )
    assert set(changes(found)) == {"1.a", "b"}
    assert json.loads(render_config(found, "json", Style()))["same"] == 1
    assert config_delta({"config": [1], "mesh": "x", "xla_flags": 3}, {"config": None}).knobs == ()


def test_a_key_that_only_moves_what_is_learned_says_so() -> None:
    (knob,) = delta({"learning_rate": 1e-4}, {"learning_rate": 2e-4}).knobs
    assert knob.moves == ("what is learned",)
