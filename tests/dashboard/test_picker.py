"""The sidebar: which runs are compared, and how they are read."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from streamlit.runtime.scriptrunner import StopException

import sample_profiles
from dashboard import history, picker
from dashboard.sources import Sources
from profiler import api

RECORDED = "samples/tiny-qwen3/{}.xplane.pb.gz"
SMALL = {"base": RECORDED.format("baseline"), "opt": RECORDED.format("optimized")}


def shown(app: Any) -> str:
    """All HTML of the page, as text."""
    markup = "\n".join(str(element.proto.body) for element in app.get("html"))
    return re.sub(r"<[^>]+>", " ", markup)


def choice(app: Any) -> Any:
    assert not app.exception
    return app.session_state["_choice"]


def test_the_lists_show_what_the_url_chose(open_page: Any) -> None:
    app = open_page("overview", **SMALL)
    assert [app.selectbox(key=f"_{side}_pick").value for side in ("base", "opt")] == list(SMALL.values())
    label = next(
        each for each in app.selectbox(key="_base_pick").options if each.startswith("samples/tiny-qwen3/baseline")
    )
    assert label == "samples/tiny-qwen3/baseline · tiny-qwen3 · CPU · batch 4 × 512 · recorded · 2026-12-01 01:19"


def test_a_run_of_the_list_becomes_the_path(open_page: Any) -> None:
    app = open_page("overview", **SMALL)
    picked = "samples/cpu-remat/baseline.xplane.pb.gz"
    app.selectbox(key="_base_pick").set_value(picked).run()
    assert app.text_input(key="base").value == picked
    assert choice(app).base == picked
    assert app.query_params["base"] == picked


def test_a_typed_path_counts_and_shows_in_the_list_where_it_is_one(open_page: Any) -> None:
    app = open_page("overview", **SMALL)
    app.text_input(key="base").set_value("tiny-gpt-oss/baseline.xplane.pb.gz").run()
    assert choice(app).base == "tiny-gpt-oss/baseline.xplane.pb.gz"
    assert app.selectbox(key="_base_pick").value == "samples/tiny-gpt-oss/baseline.xplane.pb.gz"
    app.text_input(key="base").set_value("named=tiny-qwen3/baseline.xplane.pb.gz").run()
    assert app.selectbox(key="_base_pick").value is None
    assert "named" in shown(app)


def test_several_runs_of_a_side_are_joined(open_page: Any) -> None:
    app = open_page("overview", **SMALL)
    app.multiselect(key="_base_several").set_value(list(SMALL.values())).run()
    assert choice(app).base == ",".join(SMALL.values())
    assert app.multiselect(key="_base_several").value == list(SMALL.values())


def test_swap_swaps_the_sides_and_what_belongs_to_them(open_page: Any) -> None:
    app = open_page("overview", **SMALL, tokens_per_step="100,200", base_config="tiny-qwen3/baseline.yml")
    next(button for button in app.button if button.label == "Swap").click().run()
    found = choice(app)
    assert (found.base, found.opt) == (SMALL["opt"], SMALL["base"])
    assert (found.base_options.tokens_per_step, found.opt_options.tokens_per_step) == (200, 100)
    assert found.base_options.config is None
    assert found.opt_options.config is not None and found.opt_options.config.name == "baseline.yml"


def test_options_are_read_as_the_command_line_reads_them(open_page: Any) -> None:
    app = open_page(
        "overview",
        **SMALL,
        steps="1:4",
        skip_first="1",
        model_tflops="2",
        peak_tflops="3,4",
        normalize="step",
        force="true",
    )
    found = choice(app)
    assert found.base_options == api.Options(
        steps=(1, 4), skip_first=1, model_tflops=2, peak_tflops=3, normalize="step", force=True
    )
    assert found.opt_options.peak_tflops == 4


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("steps", "x", "is not a range of steps"),
        ("steps", "--format=json", "is not a range of steps"),
        ("peak_tflops", "-1", "is not a positive number"),
        ("base_config", "../secret.yml", "is not below a folder of the dashboard"),
        ("base_config", "/etc/passwd", "is not below a folder of the dashboard"),
    ],
)
def test_a_value_that_is_none_is_said_in_a_line(open_page: Any, name: str, value: str, words: str) -> None:
    app = open_page("overview", **SMALL, **{name: value})
    assert not app.exception
    assert words in shown(app)


@pytest.mark.parametrize("text", ["/etc/passwd", "../x.xplane.pb", "nothing", "upload:0123456789abcdef/a.xplane.pb"])
def test_a_path_that_may_not_be_read_is_said_in_a_line(open_page: Any, text: str) -> None:
    app = open_page("overview", base=text, opt=SMALL["opt"])
    assert not app.exception
    assert "is not below a folder of the dashboard" in shown(app)


def test_what_the_app_was_started_on_is_open(open_page: Any) -> None:
    paths = tuple(str(sample_profiles.path(each.removeprefix("samples/"))) for each in SMALL.values())
    found = choice(open_page("overview", paths=paths))
    assert (found.base, found.opt, found.ladder) == ("baseline.xplane.pb.gz", "optimized.xplane.pb.gz", ())
    named = tuple(f"{side}={path}" for side, path in zip("xyz", (*paths, paths[0]), strict=True))
    found = choice(open_page("overview", paths=named))
    assert (found.base, found.opt, len(found.ladder)) == ("x=baseline.xplane.pb.gz", "y=optimized.xplane.pb.gz", 3)
    found = choice(open_page("overview", paths=paths[:1]))
    assert found.alone


def test_a_folder_without_runs_opens_nothing(open_page: Any, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    app = open_page("overview", paths=(str(tmp_path / "logs"),))
    assert choice(app) is None
    assert "There is no recording to open." in shown(app)


def test_runs_that_cannot_be_read_are_not_open_at_first(open_page: Any, tmp_path: Path) -> None:
    for day, sample in ((1, "tiny-qwen3/baseline"), (2, "qwen3-30b-pdbs8/baseline"), (3, "tiny-qwen3/optimized")):
        file = tmp_path / "logs" / f"2026_12_0{day}_00_00_00" / "host-0.xplane.pb.gz"
        file.parent.mkdir(parents=True)
        shutil.copy(sample_profiles.path(f"{sample}.xplane.pb.gz"), file)
    broken = tmp_path / "logs" / "2026_12_04_00_00_00" / "host-0.xplane.pb"
    broken.parent.mkdir()
    broken.touch()
    found = choice(open_page("overview", paths=(str(tmp_path / "logs"),)))
    assert (found.base, found.opt) == ("logs/2026_12_01_00_00_00", "logs/2026_12_03_00_00_00")


def test_an_upload_becomes_the_side(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sent(io.BytesIO):
        name = "run.xplane.pb.gz"

    class Yaml(io.BytesIO):
        name = "run.yml"

    data = sample_profiles.path("tiny-qwen3/baseline.xplane.pb.gz").read_bytes()
    state: dict[str, Any] = {"_base_upload": [Sent(data), Yaml(b"batch: 1")]}
    monkeypatch.setattr(picker.st, "session_state", state)
    sources = Sources()
    picker._uploaded(sources, "base")
    assert api.summary(sources.resolve(state["base"])).steps.count > 1
    assert sources.config(state["base_config"]).read_text() == "batch: 1"
    Sent.name = "run.exe"
    state["_base_upload"] = [Sent(data)]
    picker._uploaded(sources, "base")
    assert "is none of" in str(state["_upload_failedbase"])


def test_what_the_url_chose_outlives_a_click_while_the_lists_are_made(open_page: Any, monkeypatch: Any) -> None:
    def interrupted(_: Any) -> Any:
        raise StopException

    with monkeypatch.context() as patched:
        patched.setattr(history, "listed", interrupted)
        app = open_page("overview", **SMALL)
    app.query_params.clear()
    app.run()
    assert (choice(app).base, choice(app).opt) == (SMALL["base"], SMALL["opt"])


def test_an_upload_that_is_refused_keeps_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sent(io.BytesIO):
        def __init__(self, name: str):
            super().__init__(sample_profiles.path("tiny-qwen3/baseline.xplane.pb.gz").read_bytes())
            self.name = name

    state: dict[str, Any] = {"_base_upload": [Sent("a.pb"), Sent("run.xplane.pb.gz"), Sent("b.gz")]}
    monkeypatch.setattr(picker.st, "session_state", state)
    picker._uploaded(Sources(), "base")
    assert state["base"].endswith("/run.xplane.pb.gz")
    assert [str(error).partition(":")[0] for error in state["_upload_failedbase"]] == ["a.pb", "b.gz"]


def test_what_is_open_stays_where_it_is_whatever_is_chosen(open_page: Any) -> None:
    def places(app: Any) -> list[int]:
        return [at for at, each in app.sidebar.children.items() if each.type == "expander"]

    named = {"base": f"named={SMALL['base']}", "opt": SMALL["opt"]}
    assert places(open_page("overview", **SMALL)) == places(open_page("overview", **named))
