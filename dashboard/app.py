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
    first = page == PAGES[0]
    return st.Page(
        VIEWS / f"{page.name}.py",
        title=page.title,
        icon=f":material/{page.icon}:",
        url_path="first" if first else page.name,  # of the first page the bare URL is used
        default=first,
    )


def _first_by_name() -> StreamlitPage:
    """The first page has the bare URL; its name leads there too."""
    first = PAGES[0]
    return st.Page(lambda: None, title=first.title, url_path=first.name, visibility="hidden")


def main() -> None:
    """One run of the app: navigation, sidebar, page."""
    # Before the navigation: else the browser asks another host for the page's symbol, to show it in its tab.
    st.set_page_config(page_icon=str(Path(__file__).parent / "icon.svg"), layout="wide")
    page = st.navigation([*(_page(each) for each in PAGES), _first_by_name()])
    st.set_page_config(page_title=f"{page.title} · profiler")
    if page.url_path == PAGES[0].name:  # before there are widgets: what is bound to one cannot be taken along
        st.switch_page(VIEWS / f"{PAGES[0].name}.py", query_params=st.query_params.to_dict())
    st.html(theme.stylesheet())
    state.keep_only(page.url_path or PAGES[0].name)
    try:
        st.session_state[shell.SOURCES] = _sources(tuple(sys.argv[1:]))
        st.session_state[shell.CHOICE] = picker.sidebar(st.session_state[shell.SOURCES])
    except ProfilerError as error:
        shell.failed(error)
        return
    page.run()


main()
