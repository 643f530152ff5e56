"""Entry: ``streamlit run dashboard/app.py [-- PATH …]``, or ``profiler dashboard [PATH …]``."""

from __future__ import annotations

import sys
from pathlib import Path

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from dashboard import picker, shell, state, theme
from dashboard.pages import PAGES, VIEWS, Page
from dashboard.sources import Sources
from profiler.errors import ProfilerError


@st.cache_resource(show_spinner=False)
def _sources(paths: tuple[str, ...]) -> Sources:
    """One for the whole server: the folders are those that it was started on."""
    return Sources.of(paths)


def _page(page: Page) -> StreamlitPage:
    return st.Page(
        VIEWS / f"{page.name}.py",
        title=page.title,
        icon=f":material/{page.icon}:",
        url_path=page.name,
        default=page == PAGES[0],
    )


def main() -> None:
    """One run of the app: navigation, sidebar, page."""
    st.set_page_config(page_title="profiler", page_icon=str(Path(__file__).parent / "icon.svg"), layout="wide")
    st.html(theme.stylesheet())
    page = st.navigation([_page(each) for each in PAGES])
    state.keep_only(page.url_path or PAGES[0].name)
    try:
        st.session_state[shell.SOURCES] = _sources(tuple(sys.argv[1:]))
        st.session_state[shell.CHOICE] = picker.sidebar(st.session_state[shell.SOURCES])
    except ProfilerError as error:
        shell.failed(error)
        return
    page.run()


main()
