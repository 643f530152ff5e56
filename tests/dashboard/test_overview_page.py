"""The first page: what it says is what ``profiler diff`` says."""

from __future__ import annotations

import re
from typing import Any

from profiler import api
from profiler.report import html_kpis
from sample_profiles import path

PAIR = {"base": "cpu-remat/baseline.xplane.pb.gz", "opt": "cpu-remat/optimized.xplane.pb.gz"}


def shown(app: Any) -> str:
    """All HTML of the page, as text."""
    markup = "\n".join(str(element.proto.body) for element in app.get("html"))
    return re.sub(r"<[^>]+>", "", markup)


def test_the_overview_has_the_verdict_and_the_cards_of_the_same_diff(open_page: Any) -> None:
    app = open_page("overview", **PAIR)
    assert not app.exception
    diff = api.diff(*(str(path(name)) for name in PAIR.values()))
    text = shown(app)
    assert diff.verdict.partition(". ")[0] in text
    for card in html_kpis.cards(diff):
        assert card.change in text
        assert card.sure in text


def test_without_arguments_the_sample_pair_is_open(open_page: Any) -> None:
    app = open_page("overview")
    assert not app.exception
    assert "20.16 %" in shown(app)
    assert "24.20 %" in shown(app)
    assert len(app.get("plotly_chart")) == 1
