"""The HTML report in a real browser."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from profiler.report import render_html

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def pages(make: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    diffs = {
        "training": make.training(120),
        "serving": make.serving(),
        "evil": make.evil(),
        "many": make.many_ops(5000),
        "complete": make.complete(),
        "compiled": make.compiled(),
        "worst": make.worst(),
    }
    paths = {name: folder / f"{name}.html" for name in diffs}
    for name, diff in diffs.items():
        paths[name].write_bytes(render_html(diff))
    return paths


NAMES_OF_PAGES = ("training", "serving", "evil", "many", "complete", "compiled", "worst")
DRAWN = "[...document.querySelectorAll('#op-table tbody tr')]"
SETTLED = "await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
SHOWN = "document.getElementById('shown').textContent"


def type_into_filter(chrome: Any, text: str) -> int:
    """How many rows the filter leaves, as the page says."""
    said = chrome.run(
        f"(async () => {{ const box = document.getElementById('filter'); box.value = {json.dumps(text)};"
        f"box.dispatchEvent(new Event('input')); {SETTLED}; return {SHOWN}; }})()"
    )
    return int(str(said).split()[0])


@pytest.mark.parametrize("name", NAMES_OF_PAGES)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_page_asks_for_nothing_and_complains_about_nothing(
    chrome: Any, pages: dict[str, Path], name: str, dark: bool
) -> None:
    chrome.open(pages[name], dark=dark)
    chrome.run(f"(async () => {{ {SETTLED}; }})()")
    assert [url for url in chrome.requests() if not url.startswith("data:")] == [pages[name].as_uri()]
    assert chrome.complaints() == []


@pytest.mark.parametrize("name", ["evil", "worst"])
def test_hostile_names_execute_nothing(chrome: Any, pages: dict[str, Path], name: str) -> None:
    chrome.open(pages[name])
    assert chrome.run("typeof window.pwned") == "undefined"
    chrome.run("document.querySelectorAll('*').forEach(node => { for (const type of ['click', 'mouseover', 'error'])"
               "if (!node.closest('nav, a')) node.dispatchEvent(new Event(type)); })")  # fmt: skip
    assert chrome.run("typeof window.pwned") == "undefined"
    assert chrome.run("document.querySelectorAll('script').length") == 1
    assert (
        chrome.run("document.querySelectorAll('img, iframe, object, [onerror], [onload], [href^=javascript]').length")
        == 0
    )
    assert "7*7" in chrome.run("document.body.textContent")
    assert "49" not in chrome.run("document.querySelector('h1').textContent")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", NAMES_OF_PAGES)
def test_no_name_breaks_the_layout(chrome: Any, pages: dict[str, Path], name: str, width: int) -> None:
    chrome.open(pages[name], width=width)
    assert chrome.run("document.documentElement.scrollWidth") <= width


def test_sorting_orders_the_rows_and_says_so(chrome: Any, pages: dict[str, Path]) -> None:
    chrome.open(pages["training"])
    values = "[...document.querySelectorAll('#op-table tbody tr')].map(row => Number(row.dataset.v.split(' ')[0]))"
    click = "document.querySelectorAll('#op-table th button')[2].click()"
    first = chrome.run(f"{click}, {values}")
    assert first == sorted(first, reverse=True)
    assert chrome.run("document.querySelectorAll('#op-table th')[2].getAttribute('aria-sort')") == "descending"
    second = chrome.run(f"{click}, {values}")
    assert second == sorted(second)
    names = chrome.run(
        "document.querySelectorAll('#op-table th button')[1].click(),"
        "[...document.querySelectorAll('#op-table td.op')].map(cell => cell.textContent)"
    )
    assert names == sorted(names)


def test_the_filter_hides_rows_and_counts_what_is_left(chrome: Any, pages: dict[str, Path]) -> None:
    chrome.open(pages["training"])
    everything = type_into_filter(chrome, "")
    assert type_into_filter(chrome, "gmm re-run") == 1
    assert chrome.run(SHOWN) == f"1 of {everything} rows"
    assert chrome.run(f"{DRAWN}.length") == 1
    assert type_into_filter(chrome, "no such op") == 0
    assert type_into_filter(chrome, "moe.py:412") == everything  # what is folded is found too
    assert type_into_filter(chrome, "") == everything


@pytest.mark.parametrize("kind", ["added", "removed", "replaced", "changed"])
def test_a_kind_of_match_can_be_seen_alone(chrome: Any, pages: dict[str, Path], kind: str) -> None:
    chrome.open(pages["training"])
    left = chrome.run(
        "(async () => { for (const box of document.querySelectorAll('input[name=match]'))"
        f"if (box.value !== '{kind}') box.click(); {SETTLED}; return {DRAWN}.map(row => row.dataset.m); }})()"
    )
    assert left == [kind]


def test_without_javascript_everything_is_there_to_read(chrome: Any, pages: dict[str, Path]) -> None:
    chrome.open(pages["complete"], script=False)
    parts = (
        "h1", ".card", "svg.waterfall rect", ".knobs tbody tr", "#families table", "#kernels table", "#reruns table",
        "svg.hbm path", "#hbm table", "#communication table", "svg.steps circle", ".findings li",
        "#op-table tbody tr", "#provenance pre",
    )  # fmt: skip
    visible = (
        f"{json.dumps(parts)}.filter(selector =>"
        "![...document.querySelectorAll(selector)].some(node => node.getBoundingClientRect().height > 0))"
    )
    assert chrome.run(visible) == []
    assert chrome.run("getComputedStyle(document.querySelector('.controls')).display") == "none"
    assert chrome.run("getComputedStyle(document.getElementById('theme')).display") == "none"
    chrome.open(pages["many"], script=False)
    assert chrome.run(f"{DRAWN}.length") == 2000


def test_thousands_of_rows_sort_and_filter_quickly(chrome: Any, pages: dict[str, Path]) -> None:
    chrome.open(pages["many"])
    elapsed = chrome.run(
        "(() => { const start = performance.now(); document.querySelectorAll('#op-table th button')[3].click();"
        "document.body.getBoundingClientRect(); return performance.now() - start; })()"
    )
    assert elapsed < 1000
    assert type_into_filter(chrome, "multiply_reduce_fusion.17.clone") >= 1


def test_rows_are_drawn_as_scrolling_asks_for_them(chrome: Any, pages: dict[str, Path]) -> None:
    chrome.open(pages["many"])
    assert chrome.run(SHOWN) == "2000 rows"
    assert chrome.run("document.getElementById('op-table').getAttribute('aria-rowcount')") == "2001"
    first = chrome.run(f"{DRAWN}.length")
    assert first < 500
    to_the_end = (
        "(async () => { const box = document.getElementById('op-scroll'); for (let i = 0; i < 50; i++) {"
        f"box.scrollTop = box.scrollHeight; {SETTLED}; }} return {DRAWN}.length; }})()"
    )
    assert chrome.run(to_the_end) == 2000
    values = chrome.run(f"{DRAWN}.map(row => Math.abs(Number(row.dataset.v.split(' ')[2])))")
    assert values == sorted(values, reverse=True)


def test_light_and_dark_follow_the_system_until_they_are_switched(chrome: Any, pages: dict[str, Path]) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    label = "document.getElementById('theme').textContent"
    press = "document.getElementById('theme').click()"
    chrome.open(pages["training"], dark=True)
    dark = chrome.run(paper)
    assert chrome.run(label) == "Light"
    light = chrome.run(f"{press}, {paper}")
    assert light != dark
    assert chrome.run(label) == "Dark"
    assert chrome.run(f"{press}, {paper}") == dark
    chrome.open(pages["training"])
    assert chrome.run(paper) == light


def test_the_keyboard_reaches_and_uses_everything(chrome: Any, pages: dict[str, Path]) -> None:
    chrome.open(pages["training"])
    focus = "document.activeElement"
    chrome.press("Tab")
    assert chrome.run(f"{focus}.className") == "skip"
    assert chrome.run(f"{focus}.getBoundingClientRect().left") >= 0
    chrome.press("Enter")
    assert chrome.run("location.hash") == "#main"
    chrome.run("document.querySelectorAll('#op-table th button')[2].focus({ focusVisible: true })")
    assert chrome.run(f"getComputedStyle({focus}).outlineStyle") == "solid"
    chrome.press("Enter")
    header = "document.querySelectorAll('#op-table th')"
    assert chrome.run(f"[...{header}].map(cell => cell.getAttribute('aria-sort'))") == [
        *["none"] * 2, "descending", *["none"] * 4,
    ]  # fmt: skip
    assert chrome.run("[...document.querySelectorAll('.scroll')].every(box => box.tabIndex === 0)")


@pytest.mark.parametrize("name", NAMES_OF_PAGES)
def test_a_screen_reader_finds_its_way(chrome: Any, pages: dict[str, Path], name: str) -> None:
    chrome.open(pages[name])
    unnamed = {
        "tables without a caption": "[...document.querySelectorAll('table')].filter(table => !table.caption)",
        "headers without a scope": "[...document.querySelectorAll('th')].filter(cell => !cell.scope)",
        "drawings without a name": "[...document.querySelectorAll('svg:not([aria-hidden])')].filter(svg =>"
        "!document.getElementById(svg.getAttribute('aria-labelledby').split(' ')[0]))",
        "sections without a heading": "[...document.querySelectorAll('section')].filter(each =>"
        "!document.getElementById(each.getAttribute('aria-labelledby')))",
        "links that lead nowhere": "[...document.querySelectorAll('a')].filter(link =>"
        "!document.querySelector(link.getAttribute('href')))",
        "ids that are not unique": "[...document.querySelectorAll('[id]')].filter(each =>"
        "document.querySelectorAll('#' + CSS.escape(each.id)).length > 1)",
        "sections that the navigation leaves out": "[...document.querySelectorAll('main > section[id]')].filter(each =>"
        "!document.querySelector(`nav a[href='#${each.id}']`))",
        "buttons without words": "[...document.querySelectorAll('button')].filter(each => !each.textContent.trim())",
    }
    found = {what: chrome.run(f"{which}.map(each => each.outerHTML.slice(0, 200))") for what, which in unnamed.items()}
    assert {what: nodes for what, nodes in found.items() if nodes} == {}
    levels = chrome.run("[...document.querySelectorAll('h1, h2, h3, h4')].map(each => Number(each.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_print_is_light_and_complete(chrome: Any, pages: dict[str, Path]) -> None:
    chrome.open(pages["many"], dark=True)
    chrome.call("Emulation.setEmulatedMedia", media="print")
    try:
        assert chrome.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert chrome.run("getComputedStyle(document.querySelector('nav')).display") == "none"
        assert chrome.run(f"{DRAWN}.filter(row => row.getBoundingClientRect().height > 0).length") == 60
        chrome.run("dispatchEvent(new Event('beforeprint'))")
        assert chrome.run("[...document.querySelectorAll('section > details')].every(each => each.open)")
        chrome.run("dispatchEvent(new Event('afterprint'))")
        assert not chrome.run("[...document.querySelectorAll('section > details')].some(each => each.open)")
    finally:
        chrome.call("Emulation.setEmulatedMedia", media="")


@pytest.mark.parametrize("figure", ["hbm", "steps"])
def test_curves_and_steps_are_drawn_for_wide_and_for_narrow_screens(
    chrome: Any, pages: dict[str, Path], figure: str
) -> None:
    shown = f"[...document.querySelectorAll('svg.{figure}')].map(svg => svg.getBoundingClientRect().height > 100)"
    for width, expected in ((1280, [True, False]), (390, [False, True])):
        chrome.open(pages["complete"], width=width)
        assert chrome.run(shown) == expected


def test_the_waterfall_is_drawn_for_wide_and_for_narrow_screens(chrome: Any, pages: dict[str, Path]) -> None:
    shown = "[...document.querySelectorAll('svg.waterfall')].map(svg => svg.getBoundingClientRect().height > 100)"
    chrome.open(pages["training"], width=1280)
    assert chrome.run(shown) == [True, False]
    chrome.open(pages["training"], width=390)
    assert chrome.run(shown) == [False, True]
    smallest = "Math.min(...[...document.querySelectorAll('.narrow text')].map(t => t.getBoundingClientRect().height))"
    assert chrome.run(smallest) >= 12
