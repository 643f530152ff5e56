"""The sidebar: which runs are compared, and how they are read."""

from __future__ import annotations

import streamlit as st

from dashboard.choice import Choice
from dashboard.sources import Sources
from profiler.api import Options


def sidebar(sources: Sources) -> Choice | None:
    """Draws the sidebar and says what it chose."""
    with st.sidebar:
        base = st.text_input("Baseline", "qwen3-30b/baseline.xplane.pb", key="base", bind="query-params")
        opt = st.text_input("Optimized", "qwen3-30b/optimized.xplane.pb", key="opt", bind="query-params")
        st.button("Swap", on_click=_swap)
        force = st.checkbox("Compare all the same", key="force", bind="query-params")
    options = Options(force=force)
    return Choice(base, opt, options, options)


def _swap() -> None:
    st.session_state["base"], st.session_state["opt"] = st.session_state["opt"], st.session_state["base"]
