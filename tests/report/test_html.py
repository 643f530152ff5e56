"""One self-contained file; what needs no browser to check (the rest is in test_browser.py)."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sample_profiles
from profiler import results
from profiler.report import render_diff, render_html
from profiler.report.output import Style

MEGABYTE = 1_000_000
# Everything the template writes itself; "window.pwned" of the fixtures can only come from a name.
TAGS = {
    "html", "head", "meta", "title", "link", "style", "body", "a", "header", "p", "bdi", "h1", "h2", "h3", "nav",
    "main", "section", "ul", "ol", "li", "span", "code", "div", "strong", "details", "summary", "table", "thead",
    "tbody",
    "tfoot", "tr", "th", "td", "button", "label", "input", "fieldset", "legend", "output", "small", "dl", "dt", "dd",
    "script", "svg", "defs", "pattern", "rect", "line", "g", "text", "path", "circle", "desc", "caption", "colgroup",
    "col", "i", "b", "pre",
}  # fmt: skip


class Page(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def assert_harmless(page: Page) -> None:
    assert {tag for tag, _ in page.tags} <= TAGS
    assert sum(tag == "script" for tag, _ in page.tags) == 1
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("href", "src", "action", "formaction", "data"):
            assert (attributes.get(name) or "#").startswith(("#", "data:,"))


@pytest.mark.parametrize("kind", ["training", "serving", "evil", "complete", "compiled", "worst"])
def test_a_page_has_no_tag_of_a_name_and_no_address_outside(make: Any, kind: str) -> None:
    page = Page(render_html(getattr(make, kind)()).decode())
    assert_harmless(page)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(
        st.text(alphabet=st.sampled_from("<>/\"'&;=!-[]{}%# abcimgsrctyle\u202e\n"), max_size=80),
        min_size=1,
        max_size=8,
    )
)
def test_no_name_escapes_its_place(make: Any, names: list[str]) -> None:
    assert_harmless(Page(render_html(make.evil(tuple(names))).decode()))


def test_the_policy_admits_one_script_and_no_request(make: Any) -> None:
    text = render_html(make.training()).decode()
    policy = next(a["content"] for t, a in Page(text).tags if t == "meta" and a.get("http-equiv"))
    script = re.findall(r"(?s)<script>(.*?)</script>", text)
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert policy is not None
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy
    assert "unsafe-eval" not in policy


def test_templates_in_names_are_not_evaluated(make: Any) -> None:
    page = Page(render_html(make.evil(("{{7*7}}", "{% for x in y %}", "${7*7}"))).decode())
    assert "{{7*7}}" in page.text
    assert "{% for x in y %}" in page.text


def test_twenty_thousand_ops_stay_small_and_the_rest_is_counted(make: Any) -> None:
    data = render_html(make.many_ops(20_000))
    assert len(data) < 2.5 * MEGABYTE
    shown = data.decode().count("<tr data-m=")
    assert shown == 2000
    assert "18000 more rows, net" in data.decode()


def test_the_worst_names_stay_small_too(make: Any) -> None:
    names = tuple(char * 20_000 for char in "&<\"'") * 100
    assert len(render_html(make.evil(names))) < 2.5 * MEGABYTE


def test_hundreds_of_long_names_in_every_place_stay_below_the_limit(make: Any) -> None:
    names = tuple(f"{i}{'&<漢' * 400}" for i in range(400))
    assert len(render_html(make.worst(names))) < 5 * MEGABYTE


def test_the_order_is_that_of_the_questions(make: Any) -> None:
    text = Page(render_html(make.complete()).decode()).text
    parts = [
        "1.30× the throughput",
        "What changed in the configuration",
        "the batch size differs",
        "+6.02 points",
        "From baseline to optimized",
        "Where the step goes: families by phase",
        "How often splash attention and the grouped matmuls run",
        "Tiles and layouts of all kernels",
        "Re-runs by rematerialisation",
        "Held over the schedule",
        "HBM at the peak",
        "Communication and transfers",
        "Every step",
        "Splash forward runs once per layer",
        "What to try next",
        "Ops, matched across the two compiles",
        "Provenance",
        "profiler report qwen3-base.xplane.pb qwen3-opt.xplane.pb --normalize flop -o report.html",
    ]
    places = [text.index(parts[0])]
    for part in parts[1:]:
        places.append(text.index(part, places[-1]))
    assert places == sorted(places)


def test_a_compiled_side_is_marked_as_an_estimate(make: Any) -> None:
    diff = make.training()
    page = render_html(replace(diff, optimized=replace(diff.optimized, kind="compiled"))).decode()
    assert "Optimized is compiled, not recorded: every time of it is an estimate." in page
    assert {"optimized ms (est.)", "optimized share (est.)"} <= set(headed(page, "optimized "))
    assert all("(est.)" in title for title in headed(page, "optimized "))
    assert not any("(est.)" in title for title in headed(page, "baseline "))


def headed(page: str, start: str) -> list[str]:
    """Column titles that start so, as a reader sees them."""
    titles = re.findall(r"<th scope=\"col\"[^>]*>(.*?)</th>", page)
    plain = (" ".join(re.sub(r"<[^>]+>", "", title).split()) for title in titles)
    return [title for title in plain if title.startswith(start)]


TIMES = ("baseline ms", "optimized ms", "baseline s", "optimized s", "base s", "opt s", "Δ s", "Δ ms", "mean",
         "TFLOP/s", "in flight", "exposed", "hidden", "points", "= calls", "+ per call", "baseline share",
         "of peak")  # fmt: skip


def test_every_time_of_compiled_profiles_is_called_an_estimate(make: Any) -> None:
    page, recorded = (render_html(diff).decode() for diff in (make.compiled(), make.complete()))
    found = [title for start in TIMES for title in headed(page, start)]
    assert len(found) > 20
    assert [title for title in found if not title.endswith("(est.)")] == []
    assert "(est.)" not in recorded
    for exact in ("calls", "base GiB", "/layer", "knob"):
        assert not any("(est.)" in title for title in headed(page, exact))
    text = Page(page).text
    assert "Baseline and optimized are compiled, not recorded" in text
    assert "range of the estimate: −28.2 % to −19.2 %" in text
    assert "a compile trains nothing" in text
    assert "Every step" not in text


def test_the_same_diff_gives_the_same_bytes(make: Any) -> None:
    assert render_html(make.complete()) == render_html(make.complete())


def test_the_same_files_give_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    pair = [str(sample_profiles.path(f"cpu-remat/{side}.xplane.pb.gz")) for side in ("baseline", "optimized")]
    pages = []
    for seed in ("1", "2"):
        page = tmp_path / f"{seed}.html"
        command = [sys.executable, "-m", "profiler", "diff", *pair, "--html", str(page)]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed})
        pages.append(page.read_bytes())
    assert pages[0] == pages[1]
    assert len(pages[0]) < 2.5 * MEGABYTE


def test_an_mfu_delta_that_is_not_split_leaves_the_parts_in_time(make: Any) -> None:
    text = " ".join(Page(render_html(make.unsplit()).decode()).text.split())
    assert "Time per device and step; the parts sum to the change" in text
    assert "in time: normalised per step, so the MFU delta is not split" in text
    assert "+6.02 points" in text
    assert "Exclusive time per device and step; rows sum to the device time" in text


def cells(page: str, table: str) -> list[list[str]]:
    """The rows of a table's body: what its cells say."""
    body = page[page.index(table) :]
    body = body[body.index("<tbody>") : body.index("</table>")]
    return [
        [html.unescape(re.sub(r"<[^>]+>", "", cell)) for cell in re.findall(r"(?s)<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in re.findall(r"(?s)<tr[^>]*>(.*?)</tr>", body)
    ]


def test_the_figures_are_those_of_the_json(make: Any) -> None:
    diff = make.complete()
    page = render_html(diff).decode()
    data = json.loads(render_diff(diff, "json", Style()))
    rows = cells(page, 'id="op-table"')
    assert len(rows) == len(data["ops"])
    for row, op in zip(rows, data["ops"], strict=True):
        assert row[0] == op["match"]
        for text, key in zip(row[2:5], ("baseline_time_ps", "optimized_time_ps", "delta_time_ps"), strict=True):
            assert number(text) == pytest.approx((op[key] or 0.0) / 1e9, abs=0.0051)
    values = [float(value) for value in re.findall(r'data-v="([-\d.e]+) ', page)]
    assert values == pytest.approx([(op["baseline_time_ps"] or 0.0) / 1e9 for op in data["ops"]], rel=1e-5)
    text = " ".join(Page(page).text.split())
    for side in ("baseline", "optimized"):
        assert f"{data[side]['mfu'] * 100:.2f} %" in text
        assert f"{data[side]['tokens_per_s']:,.0f}" in text
        assert f"{data[side]['memory']['static_peak_bytes'] / 2**30:.2f} GiB" in text
    points = [number(row[5]) for row in cells(page, "The parts as a table")]
    assert sum(points[:-1]) == pytest.approx(data["delta"]["mfu_points"], abs=0.1)
    assert points[-1] == pytest.approx(data["delta"]["mfu_points"], abs=0.005)
    low, high = (100 * (1 / end - 1) for end in reversed(data["delta"]["interval"]))
    assert f"95 %: +{low:.1f} % to +{high:.1f} %" in text


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("+", "").replace("~", ""))


def test_families_sum_to_their_phase_and_phases_to_the_step(make: Any) -> None:
    page = render_html(make.complete()).decode()
    table = page[page.index('<table class="sections">') :]
    table = table[: table.index("</table>")]
    heads = [cells(f"{part}</table>", "<tbody>")[0] for part in re.findall(r"(?s)<tbody>.*?</tbody>", table)]
    total = next(float(side.steps.mean_ps) / 1e12 for side in (make.complete().baseline,))
    assert sum(number(head[2]) for head in heads) == pytest.approx(total, abs=0.01)
    assert {head[0] for head in heads} >= {"teacher", "student backward", "re-run", "no phase of its own"}


def test_splash_and_grouped_matmuls_are_counted_by_phase(make: Any) -> None:
    page = render_html(make.complete()).decode()
    (row,) = cells(page, "How often splash attention")
    assert row == ["splash forward", "48 → 01 → 0 per layer", "48 → 01 → 0 per layer"]
    tiles = cells(page, "Tiles and layouts of all kernels</summary>")
    assert tiles == [
        ["splash forward", "re-run", "block_q 1024, q_layout HEAD_DIM_MINOR", "block_q 1024, q_layout SEQ_MINOR"]
    ]


def test_what_is_unknown_says_so_and_draws_nothing(make: Any) -> None:
    text = " ".join(Page(render_html(make.serving()).decode()).text.split())
    assert "model FLOPs are unknown" in text
    assert "no program carries its buffer assignment" in text
    assert "The configurations are not both known" in text
    assert "recorded time −4.8 % better 67.25 ms → 64.02 ms" in text
    assert "device time 66.85 ms → 63.42 ms" in text
    assert "Neither side moves anything" in text
    assert "No re-runs by rematerialisation seen" in text
    assert "Every step" not in text


def test_estimates_that_are_made_differently_are_neither_better_nor_worse(make: Any) -> None:
    diff = make.compiled()
    diff = replace(diff, warnings=(results.Note("estimates_differ", "made differently"),))
    cards = render_html(diff).decode().split('<div class="card">')[1:]
    assert not any("better" in card or "worse" in card for card in cards[:3])
    assert "worse" in cards[3]  # HBM is exact


def test_within_the_noise_nothing_is_better(make: Any) -> None:
    diff = make.complete()
    diff = replace(diff, delta=replace(diff.delta, significant=False, interval=(0.9, 1.1)))
    cards = render_html(diff).decode().split('<div class="card">')[1:]
    assert all("~ " in card and "better" not in card for card in cards[:3])


def test_the_command_can_be_pasted_into_a_shell(make: Any) -> None:
    diff = make.complete()
    base = replace(diff.baseline, file="a b/it's.pb, c.pb", label="before")
    page = render_html(replace(diff, baseline=base, comparable=False)).decode()
    command = html.unescape(re.findall(r"<pre[^>]*><code><bdi>(.*?)</bdi>", page)[0])
    words = shlex.split(command)
    assert words[2] == "before=a b/it's.pb,c.pb"
    assert "--force" in words


def test_the_command_is_what_was_typed_but_for_where_it_goes(make: Any) -> None:
    typed = ("a.pb", "b.pb", "--config", "a.yml", "b.yml", "--html", "x y.html", "--format=json", "--debug", "-o", "c")
    page = render_html(make.complete(), typed).decode()
    assert "profiler report a.pb b.pb --config a.yml b.yml -o report.html" in page


THEMES = {
    "light": r":root \{(.*?)\}",
    "dark": r':root\[data-theme="dark"\] \{(.*?)\}',
    "print": r":root:root:root \{(.*?)\}",
}


@pytest.mark.parametrize("theme", THEMES)
def test_text_has_contrast_in_every_theme(make: Any, theme: str) -> None:
    style = re.findall(r"(?s)<style>(.*?)</style>", render_html(make.training()).decode())[0]
    block = re.findall(THEMES[theme], style, re.S)[0]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]+)", block))
    for paper in ("paper", "raised", "caution"):
        for ink in ("ink", "dim", "gain", "loss", "link", "limit"):
            assert contrast(colours[ink], colours[paper]) >= 4.5, (ink, paper)


def contrast(first: str, second: str) -> float:
    """WCAG's ratio of two colours."""

    def light(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(first), light(second)))
    return (high + 0.05) / (low + 0.05)


def test_noise_and_keys_that_a_side_lacks_are_said(make: Any) -> None:
    text = Page(render_html(make.training()).decode()).text
    assert re.search(r"Time ratio \d\.\d+, 95 % interval \d\.\d+ to \d\.\d+\.", text)
    assert "default (unknown)" in text
