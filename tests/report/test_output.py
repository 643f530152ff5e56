"""Files appear whole or not at all; a terminal gets what it can show."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from profiler.errors import UsageError
from profiler.report.output import Style, target, terminal_style, write_whole

FORMATS = ("text", "json", "markdown", "csv")


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.json", "json"), ("a.MD", "markdown"), ("a.csv", "csv"), ("a.txt", "text"), ("report", "text")],
)
def test_the_extension_chooses_the_format(tmp_path: Path, name: str, expected: str) -> None:
    assert target(None, tmp_path / name, FORMATS).format == expected


def test_format_wins_over_the_extension(tmp_path: Path) -> None:
    assert target("csv", tmp_path / "a.json", FORMATS).format == "csv"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing/a.json", "the folder to write into does not exist"),
        (".", "is a folder"),
        ("a.parquet", r"cannot write '\.parquet' files"),
        ("a.html", "use --html FILE"),
    ],
)
def test_a_bad_destination_is_refused_before_any_work(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        target(None, tmp_path / name, FORMATS)


def test_a_file_is_replaced_and_no_temporary_is_left(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="cannot be written: No space left on device"):
        write_whole(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(real)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"


def test_a_device_is_written_to_not_replaced() -> None:
    write_whole(Path(os.devnull), b"new")
    assert not Path(os.devnull).is_file()


def test_a_pipe_gets_plain_text_of_100_columns() -> None:
    assert terminal_style(io.StringIO(), {}) == Style(width=100, color=False, unicode=True)


@pytest.mark.parametrize(
    ("environ", "color", "width"),
    [
        ({"COLUMNS": "80"}, True, 80),
        ({"COLUMNS": "240"}, True, 100),
        ({"COLUMNS": "20"}, True, 60),
        ({"COLUMNS": "80", "NO_COLOR": "1"}, False, 80),
        ({"COLUMNS": "80", "TERM": "dumb"}, False, 80),
    ],
)
def test_a_terminal_is_asked_what_it_can_show(environ: dict[str, str], color: bool, width: int) -> None:
    style = terminal_style(Terminal(), environ)
    assert (style.color, style.width) == (color, width)


def test_an_encoding_without_our_letters_gets_ascii() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    assert terminal_style(stream, {}).unicode is False
