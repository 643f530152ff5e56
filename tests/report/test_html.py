"""One self-contained file; what needs no browser to check (the rest is in test_browser.py)."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiler.report import render_html

MEGABYTE = 1_000_000
# Everything the template writes itself; "window.pwned" of the fixtures can only come from a name.
TAGS = {
    "html", "head", "meta", "title", "link", "style", "body", "a", "header", "p", "bdi", "h1", "h2", "h3", "nav",
    "main", "section", "ul", "ol", "li", "span", "code", "div", "strong", "details", "summary", "table", "thead",
    "tbody",
    "tfoot", "tr", "th", "td", "button", "label", "input", "fieldset", "legend", "output", "small", "dl", "dt", "dd",
    "script", "svg", "defs", "pattern", "rect", "line", "g", "text",
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


@pytest.mark.parametrize("kind", ["training", "serving", "evil"])
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


def test_the_order_is_that_of_the_questions(make: Any) -> None:
    text = Page(render_html(make.training()).decode()).text
    parts = [
        "1.30× the throughput",
        "the batch size differs",
        "+6.02 points",
        "From baseline to optimized",
        "Splash forward runs once per layer",
        "Configuration that differs",
        "Where the step goes",
        "Kernels and re-runs",
        "Ops, matched across the two compiles",
        "Provenance",
    ]
    start = text.index("Comparability")
    places = [text.index(parts[0]), *(text.index(part, start) for part in parts[1:])]
    assert places == sorted(places)


def test_a_compiled_side_is_marked_as_an_estimate(make: Any) -> None:
    diff = make.training()
    page = render_html(replace(diff, optimized=replace(diff.optimized, kind="compiled"))).decode()
    assert "Optimized is compiled, not recorded: every time of it is an estimate." in page
    assert "optimized (est.)" in page


def test_the_same_diff_gives_the_same_bytes(make: Any) -> None:
    assert render_html(make.training()) == render_html(make.training())


def test_an_mfu_delta_that_is_not_split_leaves_the_parts_in_time(make: Any) -> None:
    text = " ".join(Page(render_html(make.unsplit()).decode()).text.split())
    assert "Time per device and step; the parts sum to the change" in text
    assert "in time: normalised per step, so the MFU delta is not split" in text
    assert "+6.02 points" in text
    assert "Exclusive time per device and step; rows sum to the device time" in text


def test_noise_and_keys_that_a_side_lacks_are_said(make: Any) -> None:
    text = Page(render_html(make.training()).decode()).text
    assert re.search(r"Time ratio \d\.\d+, 95 % interval \d\.\d+ to \d\.\d+\.", text)
    assert "default (unknown)" in text
