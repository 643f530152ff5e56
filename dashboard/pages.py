"""The pages of the app, in the order of its navigation."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

VIEWS = Path(__file__).parent / "views"


class Page(NamedTuple):
    """A page: its file in ``views/`` and place in the URL, what the navigation calls it, and its Material symbol."""

    name: str
    title: str
    icon: str


PAGES = (
    Page("overview", "Overview", "speed"),
    Page("ops", "Ops", "table_rows"),
    Page("attention", "Attention & remat", "replay"),
    Page("gmm", "Grouped matmul", "grid_view"),
    Page("comm", "Communication", "swap_horiz"),
    Page("memory", "Memory", "memory"),
    Page("timeline", "Timeline", "view_timeline"),
    Page("roofline", "Roofline", "show_chart"),
    Page("steps", "Steps & loss", "stairs"),
    Page("hosts", "Hosts", "dns"),
    Page("runs", "Runs", "history"),
    Page("health", "Trace health", "health_and_safety"),
)
