"""Entry: ``streamlit run dashboard/app.py [-- PATH …]``, or ``profiler dashboard [PATH …]``."""

from __future__ import annotations

import sys
from pathlib import Path

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from dashboard import elements, picker, shell, state, theme
from dashboard.sources import Sources
from profiler.errors import ProfilerError

VIEWS = Path(__file__).parent / "views"
PAGES = (
    ("overview", "Overview", "speed"),
    ("ops", "Ops", "table_rows"),
    ("attention", "Attention & remat", "replay"),
    ("gmm", "Grouped matmul", "grid_view"),
    ("comm", "Communication", "swap_horiz"),
    ("memory", "Memory", "memory"),
    ("timeline", "Timeline", "view_timeline"),
    ("roofline", "Roofline", "show_chart"),
    ("steps", "Steps & loss", "stairs"),
    ("runs", "Runs", "history"),
    ("health", "Trace health", "health_and_safety"),
)


@st.cache_resource(show_spinner=False)
def _sources(paths: tuple[str, ...]) -> Sources:
    """One for the whole server: the folders are those that it was started on."""
    return Sources.of(paths)


def _page(name: str, title: str, icon: str) -> StreamlitPage:
    first = name == PAGES[0][0]
    return st.Page(VIEWS / f"{name}.py", title=title, icon=f":material/{icon}:", url_path=name, default=first)


def main() -> None:
    """One run of the app: navigation, sidebar, page."""
    st.set_page_config(page_title="profiler", page_icon=str(Path(__file__).parent / "icon.svg"), layout="wide")
    st.html(theme.stylesheet())
    page = st.navigation([_page(*each) for each in PAGES if (VIEWS / f"{each[0]}.py").exists()])
    state.keep_only(page.url_path or "overview")
    try:
        st.session_state[shell.SOURCES] = _sources(tuple(sys.argv[1:]))
        st.session_state[shell.CHOICE] = picker.sidebar(st.session_state[shell.SOURCES])
    except ProfilerError as error:
        elements.failure(error)
        return
    page.run()


main()
