"""Runs of many hosts on every page: folders with a file per host, what reduce makes of them, and the page of hosts."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="the dashboard extra is not installed")

from dashboard import loading, plots_hosts, xprof
from dashboard.pages import PAGES
from dashboard.sources import Sources
from dashboard.theme import LIGHT
from profiler import api
from profiler.analysis.skew import skew
from profiler.errors import UnreadableError
from profiler.report import render_hosts
from profiler.report.figures_hosts import OWN, device_strip
from profiler.report.output import Style

BASE, OPT = "logs/plugins/profile/2026_12_01_01_00_00", "logs/plugins/profile/2026_12_01_02_00_00"
WHOLE = {"base": BASE, "opt": OPT}
REDUCED = {"base": "reduced/one.parquet", "opt": "reduced/two.parquet"}
HOSTS, SLOW = 4, 2


@pytest.fixture(scope="module")
def generated(load_helper: Callable[[Path], ModuleType]) -> ModuleType:
    """The helpers that write small hosts."""
    return load_helper(Path(__file__).resolve().parents[1] / "fleet" / "conftest.py")


@pytest.fixture(scope="module")
def top(generated: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs of four hosts, one of which is slow in the first, and both of them reduced."""
    folder = tmp_path_factory.mktemp("fleet")
    for number, run in enumerate((BASE, OPT)):
        for host in range(HOSTS):
            slower = (1.2 if host == SLOW and not number else 1.0) * (1 - 0.1 * number)
            generated.host_file(
                folder / run / f"host-{host}.xplane.pb", f"host-{host}", slower=slower, steps=12, seed=number
            )
    (folder / "reduced").mkdir()
    for run, name in ((BASE, "one"), (OPT, "two")):
        api.reduce(str(folder / run), folder / "reduced" / f"{name}.parquet")
    return folder


def shown(app: Any) -> str:
    """All HTML of the page, or of a part of it, as text."""
    bodies = (str(element.proto.body) for element in app.get("html"))
    body = "\n".join(each for each in bodies if "<style" not in each)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", body))).strip()


def figures(app: Any) -> list[dict[str, Any]]:
    return [json.loads(element.proto.spec) for element in app.get("plotly_chart")]


# --- pages on reduced runs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page.name for page in PAGES if page.name != "runs"])
def test_a_reduced_pair_shows_the_figures_of_the_profiles(open_page: Any, top: Path, page: str) -> None:
    named = ({side: f"{side}={path}" for side, path in pair.items()} for pair in (WHOLE, REDUCED))
    whole, reduced = (open_page(page, paths=(str(top),), **pair) for pair in named)
    assert not whole.exception
    assert not reduced.exception
    assert [each["data"] for each in figures(reduced)] == [each["data"] for each in figures(whole)]
    tables = [[each.value.to_csv() for each in app.dataframe] for app in (whole, reduced)]
    assert tables[0] == tables[1]
    assert shown(whole.main) == shown(reduced.main).replace("reduced/one.parquet", BASE).replace(
        "reduced/two.parquet", OPT
    )


def test_a_run_against_its_reduced_form_differs_in_nothing(open_page: Any, top: Path) -> None:
    app = open_page("overview", paths=(str(top),), base=BASE, opt=REDUCED["base"])
    assert not app.exception
    assert re.search(r"10\.\d+ ms → 10\.\d+ ms|[Nn]o difference|\+0\.0 %|±0", shown(app))
    left, right = re.search(r"step ([\d.]+ ms) → ([\d.]+ ms)|()()", shown(app)).group(1, 2)  # type: ignore[union-attr]
    assert left == right


def test_runs_lists_and_measures_reduced_runs(open_page: Any, top: Path) -> None:
    app = open_page("runs", paths=(str(top),), **REDUCED)
    assert not app.exception
    assert "4 runs, newest first" in shown(app)
    app.multiselect(key="runs").set_value(list(REDUCED.values())).run()
    assert not app.exception
    assert "What they measured" in [each.value for each in app.subheader]
    assert "Cannot be read" not in [each.label for each in app.expander]


def test_the_picker_lists_reduced_runs(open_page: Any, top: Path) -> None:
    app = open_page("overview", paths=(str(top),), **REDUCED)
    options = " ".join(option for box in app.selectbox for option in box.options)
    assert "reduced/one" in options
    assert "2026_12_01_02_00_00" in options


def test_reduced_runs_of_the_command_line_are_opened(open_page: Any, top: Path) -> None:
    app = open_page("hosts", paths=tuple(str(top / name) for name in REDUCED.values()))
    assert not app.exception
    assert "Host host-2 is slow" in shown(app)


@pytest.mark.parametrize("page", ["timeline", "ops"])
def test_spans_that_are_not_kept_are_said_with_the_remedy(open_page: Any, top: Path, page: str) -> None:
    app = open_page(page, paths=(str(top),), **REDUCED, device="host-2/TPU:1")
    assert not app.exception
    text = shown(app)
    assert "the spans of host-2/TPU:1 are not kept" in text
    assert "profiler reduce --keep all" in text
    assert str(top) not in text


# --- what a reduced run is told by -----------------------------------------------------------------------------------


def test_a_reduced_run_is_told_by_its_manifest(top: Path, tmp_path: Path) -> None:
    one, two = (str(top / name) for name in REDUCED.values())
    copy = tmp_path / "copy.parquet"
    shutil.copytree(one, copy)
    assert loading.fingerprint(one) == loading.fingerprint(str(copy)) != loading.fingerprint(two)
    assert loading.stamps(one) != loading.stamps(two)


def test_how_much_is_read_is_said_of_folders_too(top: Path) -> None:
    reduced = top / REDUCED["base"]
    size = sum(file.stat().st_size for file in reduced.rglob("*") if file.is_file())
    assert loading.extent(str(reduced)) == f"{size / 1024:.{1 if size >= 102400 else 2}f} KiB"
    assert loading.extent(str(top / BASE)).startswith("4 files, ")


@pytest.mark.parametrize("place", ["spans", "sums"])
def test_a_link_deep_in_a_reduced_run_is_not_followed(top: Path, tmp_path: Path, place: str) -> None:
    folder = tmp_path / "open"
    shutil.copytree(top / REDUCED["base"], folder / "run.parquet")
    sources = Sources([folder], samples=False)
    assert sources.resolve("run.parquet")
    try:
        (folder / "run.parquet" / place / "more.parquet").symlink_to(top / OPT / "host-0.xplane.pb")
    except OSError:
        pytest.skip("links need rights here")
    with pytest.raises(UnreadableError, match="is a link"):
        sources.resolve("run.parquet")


def test_a_damaged_table_is_named_in_one_line(open_page: Any, top: Path, tmp_path: Path) -> None:
    shutil.copytree(top / REDUCED["base"], tmp_path / "cut.parquet")
    (tmp_path / "cut.parquet" / "steps.parquet").write_bytes(b"PAR1")
    app = open_page("overview", paths=(str(tmp_path),), base="cut.parquet", opt="cut.parquet")
    assert not app.exception
    assert "steps.parquet: cannot be read, or is damaged (write it anew with profiler reduce)" in shown(app)


# --- the page of hosts -----------------------------------------------------------------------------------------------


def test_the_verdicts_are_those_of_the_command(open_page: Any, top: Path) -> None:
    for pair in (WHOLE, REDUCED):
        app = open_page("hosts", paths=(str(top),), **pair)
        assert not app.exception
        for title, side in (("Baseline", "base"), ("Optimized", "opt")):
            said = json.loads(render_hosts(api.hosts(str(top / pair[side])), "json", Style()))
            assert f"{title}: {said['verdict']}" in shown(app)
        assert "Host host-2 is slow by 2" in shown(app)
        assert "Optimized: None of 8 devices is slow by more than noise." in shown(app)


def test_every_device_is_drawn_where_the_command_has_it(open_page: Any, top: Path) -> None:
    app = open_page("hosts", paths=(str(top),), **WHOLE, hosts_what="whole step")
    traces = figures(app)[0]["data"]
    for traced, side in ((traces[:2], "base"), (traces[2:], "opt")):
        said = json.loads(render_hosts(api.hosts(str(top / WHOLE[side])), "json", Style()))
        drawn = sorted(value for trace in traced for value in trace["y"])
        assert drawn == pytest.approx(sorted(device["step_ps"] / 1e9 for device in said["devices"]))
    assert [trace["marker"]["symbol"] for trace in traces] == ["circle-open", "triangle-up", "circle", "triangle-up"]
    assert len(traces[1]["y"]) == 2
    assert "host-2" in [each["text"] for each in figures(app)[0]["layout"]["annotations"]]


def test_work_host_and_waiting_sum_to_the_step_the_slowest_first(open_page: Any, top: Path) -> None:
    bars = figures(open_page("hosts", paths=(str(top),), **WHOLE))[1]
    said = api.hosts(str(top / BASE))
    ordered = sorted(said.hosts, key=lambda host: -(host.excess_ps or 0.0))
    sums = [sum(parts) for parts in zip(*(trace["x"] for trace in bars["data"]), strict=True)]
    assert sums == pytest.approx([(host.step_ps or 0.0) / 1e9 for host in ordered])
    assert bars["layout"]["yaxis"]["ticktext"][0] == "▲ host-2"


def test_steps_that_are_chosen_are_those_of_the_page(open_page: Any, top: Path) -> None:
    app = open_page("hosts", paths=(str(top),), **WHOLE, steps="2:6")
    assert not app.exception
    assert api.hosts(str(top / BASE), api.Options(steps=(2, 6))).verdict in shown(app)


def test_hosts_that_are_missing_or_cut_are_listed(
    open_page: Any, generated: ModuleType, tmp_path: Path, top: Path
) -> None:
    run = tmp_path / "plugins/profile/2026_12_01_03_00_00"
    shutil.copytree(top / BASE, run)
    (run / "host-1.xplane.pb").unlink()
    cut = run / "host-3.xplane.pb"
    cut.write_bytes(cut.read_bytes()[:-9])
    text = shown(open_page("hosts", paths=(str(tmp_path),), base=run.name, opt=run.name))
    assert "not below a folder" in text  # the name alone is no path below the folder
    path = f"{tmp_path.name}/plugins/profile/{run.name}"
    app = open_page("hosts", paths=(str(tmp_path),), base=path, opt=path)
    assert not app.exception
    text = shown(app)
    assert "Hosts that are missing, cut or out of step" in text
    assert re.search(r"host-1 missing the numbering of the others lacks it", text)
    assert re.search(r"host-3 cut or damaged", text)


def test_one_device_has_no_other_to_wait_for(open_page: Any) -> None:
    app = open_page(
        "hosts", base="samples/cpu-remat/baseline.xplane.pb.gz", opt="samples/cpu-remat/optimized.xplane.pb.gz"
    )
    assert not app.exception
    assert "which has no other to wait for" in shown(app)
    assert not figures(app)


def test_several_recordings_of_a_side_are_no_run_to_compare_hosts_of(open_page: Any, top: Path) -> None:
    app = open_page("hosts", paths=(str(top),), base=f"{BASE},{OPT}", opt=OPT)
    assert not app.exception
    assert "The baseline side names several recordings. give one run at a time" in shown(app)
    assert len(figures(app)) == 2


# --- beside the pages ------------------------------------------------------------------------------------------------


def test_xprof_says_that_it_opens_no_reduced_run(top: Path, tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match=r"^one: is a reduced run \(XProf opens profiles"):
        xprof.lay_out(tmp_path, [("run", str(top / REDUCED["base"]))])


def test_the_timeline_says_which_device_of_many_is_shown(open_page: Any, top: Path) -> None:
    assert "the device with the median step is shown" in shown(open_page("timeline", paths=(str(top),), **REDUCED))
    one = {"base": f"{BASE}/host-0.xplane.pb", "opt": f"{OPT}/host-0.xplane.pb"}
    assert "the device with the median step is shown" not in shown(open_page("timeline", paths=(str(top),), **one))


def test_of_thousands_of_devices_every_host_is_one_stroke(load_helper: Any) -> None:
    made = load_helper(Path(__file__).resolve().parents[1] / "fleet" / "test_skew.py")
    report = skew(made.made(1000, 4, 3, change=made.slower((2, slice(None), slice(None)), 0.07)))
    strip = device_strip("optimized", report)
    assert strip is not None
    strokes, slow = plots_hosts.devices([strip], OWN, LIGHT).data
    assert len(strokes.x) == 3 * 1000
    for place in (0, 2, 999):
        own = [device.work_ps + device.host_ps for device in report.devices if device.host == f"host-{place}"]
        assert [value * strip.scale.divisor for value in strokes.y[3 * place : 3 * place + 2]] == pytest.approx(
            [min(own), max(own)]
        )
    assert len(slow.x) == 4


def test_a_new_level_of_a_history_is_marked_and_told(open_page: Any, generated: ModuleType, tmp_path: Path) -> None:
    texts = []
    for number in range(10):
        text = f"plugins/profile/2026_12_{number + 1:02}_10_00_00"
        generated.host_file(
            tmp_path / text / "host-0.xplane.pb", "host-0", slower=1.0 if number < 5 else 0.8, seed=number, steps=6
        )
        texts.append(f"{tmp_path.name}/{text}")
    app = open_page("runs", paths=(str(tmp_path),), runs=texts, figure="step time")
    assert not app.exception
    assert re.search(r"Mean step changed its level once over 10 runs; last with \S*2026_12_06\S*: −20", shown(app))
    layout = figures(app)[0]["layout"]
    assert [shape["x0"] for shape in layout["shapes"]] == [4.5]
    assert layout["annotations"][0]["text"].endswith("%, better")


def test_names_of_hosts_are_text(open_page: Any, generated: ModuleType, tmp_path: Path) -> None:
    run = tmp_path / "plugins/profile/2026_12_01_04_00_00"
    for number in range(3):
        name = f"<b>h&{number}</b>"
        generated.host_file(run / f"h{number}.xplane.pb", name, slower=1.3 if number == 1 else 1.0, steps=12)
    path = f"{tmp_path.name}/plugins/profile/{run.name}"
    app = open_page("hosts", paths=(str(tmp_path),), base=path, opt=path)
    assert not app.exception
    assert "<b>h&" not in "".join(str(element.proto.body) for element in app.get("html"))
    drawn = figures(app)[0]["layout"]
    assert drawn["xaxis"]["ticktext"][0] == "&lt;b&gt;h&amp;0&lt;/b&gt;"
    assert "&lt;b&gt;h&amp;1&lt;/b&gt;" in [each["text"] for each in drawn["annotations"]]
    assert not any(
        "<b>h&" in text for figure in figures(app) for trace in figure["data"] for text in trace["hovertext"]
    )
