"""Files appear whole or not at all; a terminal gets what it can show."""

from __future__ import annotations

import io
import os
import stat
import sys
import threading
from pathlib import Path

import pytest

from profiler.errors import UsageError
from profiler.report.output import Style, protect, target, terminal_style, write_all, write_stdout, write_whole

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
        ({"COLUMNS": "0"}, True, 100),
        ({"COLUMNS": "-5"}, True, 100),
        ({"COLUMNS": "wide"}, True, 100),
        ({}, True, 100),
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


def test_a_terminal_that_does_not_know_its_size_gets_100_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Terminal, "fileno", lambda _: 1)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((0, 0)))
    assert terminal_style(Terminal(), {}).width == 100


class Sluggish(io.RawIOBase):
    """Takes three bytes at a time, and at every other call none, as a full non-blocking pipe does."""

    def __init__(self) -> None:
        self.taken = b""
        self.calls = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int | None:
        self.calls += 1
        if self.calls % 2:
            return None
        part = bytes(data)[:3]  # type: ignore[call-overload]
        self.taken += part
        return len(part)


def test_what_is_taken_in_parts_is_written_whole() -> None:
    for wrap in (lambda raw: raw, io.BufferedWriter):
        raw = Sluggish()
        stream = io.TextIOWrapper(wrap(raw), write_through=True)
        write_all(stream, b"all of this")
        assert raw.taken == b"all of this"


@pytest.mark.skipif(os.name != "posix", reason="a non-blocking pipe")
def test_a_full_pipe_is_waited_for() -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    found: list[bytes] = []

    def read() -> None:
        with os.fdopen(ours, "rb") as file:
            found.append(file.read())

    reader = threading.Thread(target=read)
    data = bytes(range(256)) * 4000
    with os.fdopen(theirs, "wb", buffering=0) as raw:
        reader.start()
        write_all(io.TextIOWrapper(raw, write_through=True), data)  # type: ignore[arg-type]
    reader.join(30)
    assert found == [data]


def test_a_closed_stdout_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(UsageError, match="stdout: is closed"):
        write_stdout(b"x")
    with pytest.raises(UsageError, match="stdout: is closed"):
        target("json", None, FORMATS)


@pytest.mark.skipif(os.name != "posix", reason="permissions as on POSIX")
@pytest.mark.parametrize("mode", [0o600, 0o664, 0o755])
def test_a_replaced_file_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    path.chmod(mode)
    write_whole(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.skipif(os.name != "posix", reason="names as on Linux")
def test_a_name_may_be_as_long_as_the_file_system_takes_and_no_longer(tmp_path: Path) -> None:
    path = tmp_path / ("漢" * 80 + ".txt")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    for name in ("x" * 300, "x" * 300 + "/a.txt"):
        with pytest.raises(UsageError, match="cannot be written: File name too long"):
            target("text", tmp_path / name, FORMATS)
        with pytest.raises(UsageError, match="cannot be written: File name too long"):
            write_whole(tmp_path / name, b"new")


def test_a_folder_closed_to_us_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    for method in ("stat", "open"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, method, refuse)
            with pytest.raises(UsageError, match="cannot be written: Permission denied"):
                write_whole(tmp_path / "a.txt", b"new")
    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(UsageError, match="cannot be written: Permission denied"):
        target("text", tmp_path / "a.txt", FORMATS)


def test_a_device_may_be_every_output(tmp_path: Path) -> None:
    protect([Path(os.devnull), Path(os.devnull), tmp_path / "a"], [Path(os.devnull), tmp_path / "b"])
