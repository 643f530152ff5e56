"""The URL is the state: whoever opens it sees the same view.

Widgets are bound to it by Streamlit (``bind="query-params"``). What has no widget (a window of the timeline, a chosen
row) is kept here, and leaves the URL with the page that it belongs to.
"""

from __future__ import annotations

import streamlit as st

# Parameters without a widget, by the page that they belong to.
LOOSE = {
    "ops": ("row",),
    "timeline": ("window", "span"),
}
MOST_DIGITS = 18  # Python refuses to read thousands of them


def keep_only(page: str) -> None:
    """Forgets the loose parameters of all other pages."""
    for other, names in LOOSE.items():
        if other != page:
            for name in names:
                if name in st.query_params:
                    del st.query_params[name]


def get(name: str) -> str:
    """A loose parameter, empty where it is not set."""
    return str(st.query_params.get(name, ""))


def number(name: str) -> int | None:
    """A loose parameter that is a whole number from 0 on; None where it is anything else."""
    found = get(name)
    return int(found) if found.isdecimal() and len(found) <= MOST_DIGITS else None


def put(name: str, value: str) -> None:
    """Sets a loose parameter; an empty value removes it."""
    if value:
        if st.query_params.get(name) != value:
            st.query_params[name] = value
    elif name in st.query_params:
        del st.query_params[name]
