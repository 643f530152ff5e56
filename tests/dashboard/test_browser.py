"""Every page in a real browser, on every recording: it complains about nothing and asks nobody else for anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="the dashboard extra is not installed")

from dashboard.pages import PAGES

pytestmark = pytest.mark.browser

PROFILES = Path(__file__).resolve().parents[3] / "shared" / "profiles"
RECORDINGS = sorted(each.name for each in PROFILES.glob("*.xplane.pb")) or ["none"]
BROKEN = "corrupt_utf8.xplane.pb"
DEFAULT = {"base": "samples/qwen3-30b/baseline.xplane.pb", "opt": "samples/qwen3-30b/optimized.xplane.pb"}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", [page.name for page in PAGES])
def test_a_page_opens_by_its_url_complains_about_nothing_and_can_be_read(app: Any, page: str, dark: bool) -> None:
    app.open(page, dark=dark, **DEFAULT)
    assert app.wrong(page) == {}
    assert not app.chrome.run("!!document.querySelector('.failure')")
    assert app.faint() == []
    paper = app.chrome.run("getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor")
    assert paper == ("rgb(20, 23, 26)" if dark else "rgb(253, 253, 252)")


def test_the_first_page_opens_by_its_name_too(app: Any) -> None:
    app.load(f"{app.address}/overview?base=samples/cpu-remat/baseline.xplane.pb.gz")
    assert app.wrong("overview") == {}
    assert "base=samples" in app.url()
    assert not app.chrome.run("!!document.querySelector('[role=dialog]')")


@pytest.mark.recordings
@pytest.mark.parametrize("name", [name for name in RECORDINGS if name != BROKEN])
def test_every_page_of_a_recording_complains_about_nothing(app: Any, recordings: Path, name: str) -> None:
    recording = f"profiles/{name}"
    app.open(base=recording, opt=recording)
    wrong = {}
    for page in PAGES:
        if page != PAGES[0]:
            app.go(page.name)
        if found := app.wrong(page.name):
            wrong[page.name] = found
        if app.chrome.run("!!document.querySelector('.failure')"):
            wrong[page.name] = app.text(".failure")
    assert wrong == {}


@pytest.mark.recordings
def test_a_broken_file_is_explained_on_every_page(app: Any, recordings: Path) -> None:
    app.open(base=f"profiles/{BROKEN}", opt=f"profiles/{BROKEN}")
    wrong = {}
    for page in PAGES:
        if page != PAGES[0]:
            app.go(page.name)
        if found := app.wrong(page.name):
            wrong[page.name] = found
        elif page.name != "runs" and "was rewritten as UTF-8 text" not in app.text(".failure"):
            wrong[page.name] = app.text()
    assert wrong == {}


@pytest.mark.parametrize(
    "text", ["nothing/here.xplane.pb", "../../../etc/passwd", "<img src=x onerror=window.pwned=1>"]
)
def test_a_path_that_is_none_is_refused_in_words(app: Any, text: str) -> None:
    app.open(base=text, opt=text)
    assert app.complaints() == []
    assert app.text(".failure")
    assert app.chrome.run("typeof window.pwned") == "undefined"


HOSTILE = (
    "<img src=x onerror=window.pwned=1>",
    "<script>window.pwned=1</script>",
    "</td></tr></table><h1>gone",
    "[here](javascript:window.pwned=1) ![there](https://example.com/x.png)",
    ":material/home: :red[words] $x^2$ `code`",
    '"><svg onload=window.pwned=1>{{7*7}}',
    "a\u202eb\x1b[2J",
)


def test_hostile_names_execute_nothing_on_any_page(app: Any, tpu_space: Any) -> None:
    steps = [(str(number), number * 10_000_000, 9_000_000) for number in range(4)]
    space = tpu_space(
        {
            "TPU:0": {
                "Steps": steps,
                "XLA Modules": [(f"{HOSTILE[0]}(7)", start, length) for _, start, length in steps],
                "XLA Ops": [
                    (name, start + 1_000_000 * at, 900_000) for _, start, _ in steps for at, name in enumerate(HOSTILE)
                ],
            }
        }
    )
    space.write(app.folder / "<b>![x](y)$z$.xplane.pb")
    wrong: dict[str, Any] = {}
    recording = "made/<b>![x](y)$z$.xplane.pb"
    seen = []
    for page in PAGES:
        app.open(page.name, base=recording, opt=recording, row="0")
        app.chrome.run("document.querySelectorAll('details > summary').forEach((each) => each.click())")
        app.settle()
        if found := app.wrong(page.name):
            wrong[page.name] = found
        words = app.chrome.run("document.documentElement.textContent")
        seen += [page.name] if any(name in words for name in HOSTILE) else []
        if app.chrome.run("typeof window.pwned") != "undefined":
            wrong[page.name] = "something was executed"
        foreign = (
            "[src*=example], [href*=example], [href^=javascript], [onerror], [onload], .pf h1:not(.verdict), .katex"
        )
        if found := app.chrome.run(f"[...document.querySelectorAll('{foreign}')].map((each) => each.outerHTML)"):
            wrong[page.name] = found
    assert wrong == {}
    assert {"ops", "timeline"} <= set(seen)  # as letters
