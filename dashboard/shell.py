"""What surrounds every page: its data, and what is shown where there is none."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from dashboard import elements, loading
from dashboard.choice import Choice
from dashboard.loading import Comparison
from dashboard.sources import Sources
from profiler.errors import NotComparableError, ProfilerError

CHOICE, SOURCES = "_choice", "_sources"  # in the session's state, set by app.py before a page runs


def sources() -> Sources:
    """The folders that this app may read."""
    found: Sources = st.session_state[SOURCES]
    return found


def choice() -> Choice | None:
    """What the sidebar chose; None where there is no recording at all."""
    found: Choice | None = st.session_state.get(CHOICE)
    return found


def show(page: Callable[[Comparison], None]) -> None:
    """Runs a page on the chosen comparison; what fails is said in one line, and what can be done about it."""
    chosen = choice()
    if chosen is None:
        elements.empty(
            "There is no recording to open.",
            "Start the app on a folder of runs (profiler dashboard FOLDER), or upload two .xplane.pb files.",
        )
        return
    try:
        found = loading.comparison(chosen, sources())
    except ProfilerError as error:
        failed(error)
        if isinstance(error, NotComparableError):
            st.button("Compare all the same", on_click=_force)
        return
    if chosen.alone:
        elements.empty("One recording: it is compared with itself, so nothing differs.", "Choose another on the left.")
    page(found)


def failed(error: ProfilerError) -> None:
    """What is wrong with the choice, and the ways out: another one, or none as when the app was opened first."""
    elements.failure(error)
    elements.html(
        '<p class="remark">Change what is chosen on the left, or <a href="?" style="color: inherit">begin anew</a>.</p>'
    )


def _force() -> None:
    st.session_state["force"] = True
