"""The sidebar: which runs are compared, and how they are read. The PATH texts are the state, and stand in the URL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import streamlit as st

from dashboard import elements, history, xprof
from dashboard.choice import Choice
from dashboard.history import Listed
from dashboard.sources import SAMPLES, Sources, browser
from dashboard.uploads import KINDS
from profiler.api import Options
from profiler.errors import ProfilerError, UsageError

SIDES = (("base", "Baseline"), ("opt", "Optimized"))
SAMPLE_PAIR = ("samples/qwen3-30b/baseline.xplane.pb", "samples/qwen3-30b/optimized.xplane.pb")
UNITS = ("auto", "token", "flop", "step", "run")
# Options of the command line that the sidebar has as texts: name, label, help.
TEXTS = (
    ("host", "Host", "Only this host's planes"),
    ("device", "Device", "Only this device, for example TPU:0"),
    ("steps", "Steps", "Only steady steps from A up to, not including, B: 3:8, 3: or :8"),
    ("skip_first", "Skip first", "Leave the first N steady steps out"),
    ("tokens_per_step", "Tokens per step", "Per device; one value for both sides, or BASE,OPT"),
    ("model_tflops", "Model TFLOP per step", "Per device, the numerator of MFU; one value for both sides, or BASE,OPT"),
    ("peak_tflops", "Peak TFLOP/s", "Dense bf16 per device, for chips that the table lacks; one value, or BASE,OPT"),
)
_NAMES = tuple(name for name, _, _ in TEXTS)
_FAILED = "_upload_failed"


def sidebar(sources: Sources) -> Choice | None:
    """Draws the sidebar and says what it chose; None where there is nothing to choose yet.

    Raises:
        ProfilerError: an option has no such value, or a configuration cannot be read.
    """
    _remember()
    choices = history.listed(sources)
    titles = history.titles(choices)
    _begin(sources, choices)
    with st.sidebar:
        base = _side(sources, *SIDES[0], choices, titles)
        st.button("Swap", on_click=_swap, icon=":material/swap_vert:", width="stretch")
        opt = _side(sources, *SIDES[1], choices, titles)
        ladder = _ladder(titles)
        values = _reading()
        if base or opt:
            _xprof(sources, base or opt, opt or base)
    if not base and not opt:
        return None
    return Choice(base or opt, opt or base, *_options(values, sources), ladder=ladder)


def use(side: str, text: str) -> None:
    """For a button: makes a run one side of the comparison."""
    st.session_state[side] = text


def use_ladder(texts: list[str]) -> None:
    """For a button: makes runs a ladder, and its ends the two sides."""
    st.session_state["ladder"] = texts
    st.session_state["base"], st.session_state["opt"] = texts[0], texts[-1]


# --- what is chosen at first -----------------------------------------------------------------------------------------


def _remember() -> None:
    """What the URL chose outlives a click on another page before its widgets are there, which takes it from the URL."""
    for side, _ in SIDES:
        if side not in st.session_state and side in st.query_params:
            st.session_state[side] = st.query_params[side]


def _begin(sources: Sources, choices: list[Listed]) -> None:
    """Without a choice in the URL: the recordings that the app was started on, else the two newest that go together."""
    opened = sources.opened
    pair = _first(sources, choices) if not opened else (opened[0], opened[1] if len(opened) > 1 else opened[0])
    for (side, _), text in zip(SIDES, pair, strict=True):
        if side not in st.session_state:
            st.session_state[side] = text
    if len(opened) > 2 and "ladder" not in st.session_state and "ladder" not in st.query_params:
        st.session_state["ladder"] = list(opened)


def _first(sources: Sources, choices: list[Listed]) -> tuple[str, str]:
    """The newest run and the one before it of the same kind and chip; with no folder, the samples."""
    if len(sources.roots) == 1:
        return SAMPLE_PAIR
    found = [(each.run, each.text) for each in choices if each.run and each.root != SAMPLES]
    found.sort(key=lambda each: each[0].started, reverse=True)
    said = [(text, history.described(run)) for run, text in found[: history.MOST_DESCRIBED]]
    said = [(text, what) for text, what in said if not what.error]
    if not said:
        return ("", "")
    newest, its = said[0]
    before = next((text for text, what in said[1:] if (what.kind, what.chip) == (its.kind, its.chip)), newest)
    return before, newest


# --- one side --------------------------------------------------------------------------------------------------------


def _side(sources: Sources, side: str, title: str, choices: list[Listed], titles: dict[str, str]) -> str:
    """The run of a side: from the list, by its path, or from an upload; the path is what counts."""
    typed = _current(side)
    chosen = _listed_as(sources, typed, choices)
    pick, several = f"_{side}_pick", f"_{side}_several"
    st.session_state[pick] = chosen[0] if len(chosen) == 1 else None
    st.session_state[several] = chosen
    st.selectbox(
        title,
        [each.text for each in choices],
        key=pick,
        format_func=lambda text: titles.get(text, text),
        placeholder="several runs" if len(chosen) > 1 else "as the path says" if typed else "choose a run",
        on_change=_picked,
        args=(side, pick),
    )
    line = st.empty()  # in its place at all times: what comes after it would close whenever it moves
    if len(chosen) == 1:
        with line:
            elements.text(history.line(next(each for each in choices if each.text == chosen[0])))
    with st.expander("Path, several runs, upload"):
        text = st.text_input(
            "Path",
            key=side,
            bind="query-params",
            placeholder="below the folders of the app",
            help="A file, a run folder, a log folder (its latest run); label=PATH names it; commas join several runs",
        )
        st.multiselect(
            "Several runs of one configuration",
            [each.text for each in choices],
            key=several,
            format_func=lambda text: titles.get(text, text),
            help="Means are over all of them",
            on_change=_picked,
            args=(side, several),
            select_all=False,
        )
        st.file_uploader(
            "Upload",
            type=["pb", "gz", "yml"],
            accept_multiple_files=True,
            key=f"_{side}_upload",
            on_change=_uploaded,
            args=(sources, side),
            help=f"{', '.join(KINDS)}; only this browser tab sees it, until it is closed or loaded again",
        )
        for error in st.session_state.pop(_FAILED + side, ()):
            elements.failure(error)
    return text.strip()


def _current(name: str) -> str:
    """A text input's value before it is drawn."""
    return str(st.session_state.get(name, st.query_params.get(name, ""))).strip()


def _listed_as(sources: Sources, typed: str, choices: list[Listed]) -> list[str]:
    """The entries of the list that a text means; none unless all of it is in the list."""
    by_text = {each.text: each.text for each in choices}
    if typed in by_text:
        return [typed]
    by_path = {each.run.path: each.text for each in choices if each.run}
    found = []
    for part in typed.split(",") if typed else []:
        try:
            name = by_text.get(part) or by_path.get(sources.resolve(part))
        except ProfilerError:
            name = None
        if name is None:
            return []
        found.append(name)
    return list(dict.fromkeys(found))


def _picked(side: str, key: str) -> None:
    chosen = st.session_state[key]
    st.session_state[side] = ",".join(chosen) if isinstance(chosen, list) else chosen or ""


def _swap() -> None:
    state = st.session_state
    state["base"], state["opt"] = state["opt"], state["base"]
    state["base_config"], state["opt_config"] = state.get("opt_config", ""), state.get("base_config", "")
    for name in ("tokens_per_step", "model_tflops", "peak_tflops"):
        first, comma, second = state.get(name, "").partition(",")
        if comma:
            state[name] = f"{second.strip()},{first.strip()}"


def _uploaded(sources: Sources, side: str) -> None:
    """Keeps what was uploaded, and makes it the side; a configuration goes to its own field.

    The field holds what was sent before, too: a file that is refused keeps none of the others out.
    """
    kept, failed = [], []
    for file in st.session_state.get(f"_{side}_upload") or []:
        try:
            kept.append(sources.uploads.add(browser(), file.name, file))
        except ProfilerError as error:
            failed.append(error)
    st.session_state[_FAILED + side] = failed
    profiles = [text for text in kept if not text.endswith(".yml")]
    if profiles:
        st.session_state[side] = ",".join(profiles)
    for text in kept:
        if text.endswith(".yml"):
            st.session_state[f"{side}_config"] = text


# --- a ladder, and how sides are read --------------------------------------------------------------------------------


def _ladder(titles: dict[str, str]) -> tuple[str, ...]:
    chosen = st.session_state.get("ladder") or st.query_params.get_all("ladder")
    with st.expander("Ladder" + (f" of {len(chosen)} runs" if chosen else "")):
        runs = st.multiselect(
            "Runs in their order",
            list(dict.fromkeys([*titles, *chosen])),
            key="ladder",
            bind="query-params",
            accept_new_options=True,
            select_all=False,
            placeholder="three runs or more",
            help="Each run against the one before and the first; the page Runs shows it. Paths count too.",
        )
    return tuple(runs) if len(runs) > 1 else ()


def _reading() -> dict[str, Any]:
    """Draws how the sides are read, and says it by the names of the command line's options."""
    with st.expander("How they are read"):
        values: dict[str, Any] = {
            "normalize": st.selectbox(
                "Measured per",
                UNITS,
                key="normalize",
                bind="query-params",
                help="The unit of work that both sides are measured per; auto takes what both know",
            )
        }
        for name, label, words in TEXTS:
            values[name] = st.text_input(label, key=name, bind="query-params", help=words).strip()
        for side, title in SIDES:
            name = f"{side}_config"
            values[name] = st.text_input(
                f"{title}: configuration",
                key=name,
                bind="query-params",
                placeholder="a YAML file below the folders",
                help="Knobs, model FLOPs and tokens of the run; MaxText YAML as it is",
            ).strip()
        values["force"] = st.checkbox(
            "Compare all the same", key="force", bind="query-params", help="Even what is not comparable"
        )
    return values


def _options(values: dict[str, Any], sources: Sources) -> tuple[Options, Options]:
    """How the baseline and the optimized side are read, as the command line would understand it.

    Raises:
        ProfilerError: a value is none; or a configuration may not be read.
    """
    from profiler.cli import build_parser
    from profiler.cli_options import options

    given = [f"--{name.replace('_', '-')}={values[name]}" for name in ("normalize", *_NAMES) if values[name]]
    force = ["--force"] if values["force"] else []
    try:
        args = build_parser().parse_args(["diff", "BASE", "OPT", *given, *force])
    except UsageError as error:
        raise UsageError(error.what, remedy="under How they are read, on the left") from error
    base, opt = (
        replace(options(args, number), config=sources.config(text) if text else None)
        for number, text in enumerate(values[f"{side}_config"] for side, _ in SIDES)
    )
    return base, opt


# --- XProf -----------------------------------------------------------------------------------------------------------


@st.cache_resource(show_spinner=False)
def _servers() -> xprof.Servers:
    return xprof.Servers()


def _xprof(sources: Sources, base: str, opt: str) -> None:
    """Both sides in XProf, on a port of the machine that this app runs on."""
    with st.expander("XProf"):
        if not xprof.available():
            elements.empty("XProf is not installed.", xprof.INSTALL)
            return
        asked = st.button("Open in XProf", icon=":material/open_in_new:", width="stretch")
        try:
            texts = {"baseline": base, "optimized": opt} if base != opt else {"run": base}
            sides = [(side, sources.resolve(text)) for side, text in texts.items()]
            url = _servers().running(sides)
            if asked and url is None:
                with st.spinner("Starting XProf …"):
                    url = _servers().url(sides)
        except (ProfilerError, OSError) as error:
            if asked:
                elements.failure(error if isinstance(error, ProfilerError) else UsageError(str(error)))
            return
        if url:
            st.link_button("XProf runs: open its page", url, width="stretch")
            st.button("Stop it", on_click=_servers().end, args=(sides,), width="stretch")
