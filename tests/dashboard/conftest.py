"""The app without a browser, in Streamlit's own test harness, and the same served to a real one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="the dashboard extra is not installed")

from streamlit.testing.v1 import AppTest

import dashboard

APP = Path(dashboard.__file__).parent / "app.py"
TIMEOUT_S = 120


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AppTest]:
    """``open_page("ops", base=…, opt=…)``: the app on that page; ``paths`` are the arguments it was started with."""

    def opened(page: str, *, paths: tuple[str, ...] = (), **parameters: str) -> AppTest:
        monkeypatch.setattr(sys, "argv", ["app.py", *paths])
        app = AppTest.from_file(str(APP), default_timeout=TIMEOUT_S)
        for name, value in parameters.items():
            app.query_params[name] = value
        app.run()
        if page != "overview":
            app.switch_page(f"views/{page}.py").run()
        return app

    return opened


@pytest.fixture(scope="session")
def app(chrome: Any, load_helper: Callable[[Path], Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The served app in a browser: ``App`` of driver.py."""
    driver = load_helper(Path(__file__).parent / "driver.py")
    with driver.serve(chrome, tmp_path_factory.mktemp("served")) as served:
        yield served
