"""What nobody would type into a URL, and files that cannot be read: one clear line, and a way out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboard import loading
from dashboard.pages import PAGES
from sample_profiles import path

CPU = {"base": "samples/cpu-remat/baseline.xplane.pb.gz", "opt": "samples/cpu-remat/optimized.xplane.pb.gz"}
BEGIN_ANEW = '<a href="?"'
JUNK = ("", "-1", "9" * 5000, "1e999", "nan", "\u0663", "\u00b2", "\0", "<b>", "0 0 0", "0 -1 5", "1 999999999 0")


def markup(app: Any) -> str:
    assert not app.exception
    return "\n".join(str(element.proto.body) for element in app.get("html"))


@pytest.mark.parametrize(
    ("page", "names"), [("ops", ("row",)), ("timeline", ("window", "span"))], ids=["ops", "timeline"]
)
def test_a_parameter_that_is_no_such_number_is_left_alone(open_page: Any, page: str, names: tuple[str, ...]) -> None:
    app = open_page(page, **CPU)
    for text in JUNK:
        for name in names:
            app.query_params[name] = text
        app.run()
        assert 'class="failure"' not in markup(app), text


@pytest.mark.parametrize("text", JUNK)
def test_a_step_that_is_none_is_left_alone(open_page: Any, text: str) -> None:
    app = open_page("timeline", **CPU, base_step=text, opt_step=text)
    assert 'class="failure"' not in markup(app)
    assert [each.value in range(7) for each in app.number_input] == [True, True]


@pytest.mark.parametrize(
    "parameters",
    [
        {"base": "nothing/here"},
        {"opt": "samples/qwen3-30b/optimized.xplane.pb"},  # another chip
        {"steps": "3:1"},
        {"device": "TPU:9"},
        {"base_config": "../../etc/passwd"},
    ],
    ids=lambda parameters: next(iter(parameters)),
)
def test_who_sees_a_failure_can_begin_anew(open_page: Any, parameters: dict[str, str]) -> None:
    found = markup(open_page("overview", **CPU | parameters))
    assert found.count('class="failure"') == 1
    assert BEGIN_ANEW in found
    assert BEGIN_ANEW not in markup(open_page("overview", **CPU))


def test_an_option_that_is_none_says_where_it_stands(open_page: Any) -> None:
    found = markup(open_page("overview", **CPU, steps="3:1"))
    assert "--steps" in found
    assert "(under How they are read, on the left)" in found


def test_a_file_that_the_system_refuses_is_named(open_page: Any, monkeypatch: Any) -> None:
    def refused(file: str, *_: int) -> str:
        raise PermissionError(13, "Permission denied", file)

    monkeypatch.setattr(loading, "_digest", refused)
    assert f">{CPU['base']}: cannot be read: Permission denied<" in markup(open_page("overview", **CPU))


@pytest.mark.parametrize("page", ["overview", "runs"])
def test_a_file_that_is_broken_is_named_as_it_was_chosen(open_page: Any, tmp_path: Path, page: str) -> None:
    (tmp_path / "empty.xplane.pb").touch()
    name = f"{tmp_path.name}/empty.xplane.pb"
    app = open_page(page, paths=(str(tmp_path),), base=name, opt=name, runs=name)
    assert f"{name}: is empty" in markup(app)
    assert str(tmp_path) not in markup(app)


def test_a_folder_that_the_system_refuses_is_named(open_page: Any, monkeypatch: Any, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    listed = Path.iterdir

    def refused(folder: Path) -> Iterator[Path]:
        if folder == closed:
            raise PermissionError(13, "Permission denied", str(folder))
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", refused)
    name = f"{tmp_path.name}/closed"
    found = markup(open_page("overview", paths=(str(tmp_path),), base=name, opt=name))
    assert f"{name}: cannot be read: Permission denied" in found


MARKDOWN = ":red[words] $q$ [x](y)"


def test_names_of_files_and_folders_are_in_nothing_that_reads_markdown(open_page: Any, tmp_path: Path) -> None:
    deep = tmp_path / MARKDOWN / Path(*"abcdefghijklmn")
    deep.mkdir(parents=True)
    for folder in (tmp_path / MARKDOWN, deep):  # the deep one is left out, and that is said
        shutil.copy(path("cpu-remat/baseline.xplane.pb.gz"), folder / f"{MARKDOWN}.xplane.pb.gz")
    app = open_page("overview", paths=(str(tmp_path / MARKDOWN),))
    for page in PAGES:
        app.switch_page(f"views/{page.name}.py").run()
        assert MARKDOWN in markup(app) + str([each.options for each in app.selectbox])
        told = [str(each.value) for kind in ("markdown", "caption", "header", "subheader") for each in app.get(kind)]
        told += [each.label for each in (*app.expander, *app.button, *app.text_input, *app.selectbox)]
        assert not [each for each in told if MARKDOWN in each], page.name


def test_a_name_cannot_turn_around_the_line_that_it_stands_in(open_page: Any, tmp_path: Path) -> None:
    shutil.copy(path("cpu-remat/baseline.xplane.pb.gz"), tmp_path / "a\u202eb\nc.xplane.pb.gz")
    app = open_page("overview", paths=(str(tmp_path),))
    lines = [each for each in app.selectbox(key="_base_pick").options if each.startswith(tmp_path.name)]
    assert [each.split(" · ")[0] for each in lines] == [f"{tmp_path.name}/a\\u202eb\\nc"]
