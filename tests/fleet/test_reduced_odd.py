"""A reduced run whose tables were edited, and odd targets, in use or not to be written: one clear line each."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import polars as pl
import pytest

from profiler import api, cli
from profiler.errors import UnreadableError, UsageError


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _facts_with(**changes: object):
    """The table of hosts, the first of which says something else."""

    def edit(path: Path) -> None:
        hosts = pl.read_parquet(path)
        first = json.dumps({**json.loads(hosts["facts"][0]), **changes})
        hosts.with_columns(facts=pl.Series([first, *hosts["facts"][1:]])).write_parquet(path)

    return edit


def _manifest_with(**changes: object):
    return lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _no_rows(path: Path) -> None:
    pl.read_parquet(path).clear().write_parquet(path)


def _less_columns(path: Path) -> None:
    table = pl.read_parquet(path)
    table.drop(table.columns[-1]).write_parquet(path)


def _all_text(path: Path) -> None:
    table = pl.read_parquet(path)
    table.select(pl.lit("x").alias(name) for name in table.columns).write_parquet(path)


TABLES = ["hosts", "steps", "ops", "programs", "sums/00000", "spans/00000-1", "modules/00000-1"]


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        *((f"{name}.parquet", edit) for name in TABLES for edit in (_less_columns, _all_text)),
        ("ops.parquet", _no_rows),
        ("spans/00000-1.parquet", _no_rows),
        *(("hosts.parquet", _facts_with(**{key: None})) for key in ("ops", "run_info", "origin_ns", "bytes", "groups")),
        *(("hosts.parquet", _facts_with(**{key: "x"})) for key in ("programs", "versions", "devices", "allocator")),
        *(("hosts.parquet", _facts_with(**{key: []})) for key in ("hosts", "devices")),
        ("manifest.json", _manifest_with(hosts=[])),
        ("manifest.json", _manifest_with(hosts=[None, "x"])),
        ("manifest.json", _manifest_with(hosts=[{"file": "a\0b"}, {"file": "c"}])),
        *(("manifest.json", _manifest_with(kept=kept)) for kept in (None, [1])),
        ("manifest.json", _manifest_with(kept=[{"host": 9, "device": 0, "lanes": []}])),
        ("manifest.json", _manifest_with(kept=[{"host": 0, "device": 1, "lanes": [7]}])),
    ],
)  # fmt: skip
def test_tables_that_were_edited_are_one_clear_line(make_run, tmp_path, name: str, edit, capsys) -> None:
    api.reduce(str(make_run(2)), tmp_path / "run.parquet")
    assert json.loads((tmp_path / "run.parquet/manifest.json").read_text())["kept"][0]["device"] == 1
    edit(tmp_path / "run.parquet" / name)
    codes = set()
    for command in ("summary", "hosts", "health", "ops"):
        codes.add(cli.main([command, str(tmp_path / "run.parquet")]))
        message = capsys.readouterr().err
        assert message.count("\n") <= 1
        assert not message or "write it anew with profiler reduce" in message
    assert codes <= {0, 3}
    assert 3 in codes


def test_a_manifest_leads_out_of_its_folder_by_no_name(make_run, tmp_path) -> None:
    api.reduce(str(make_run(2)), tmp_path / "run.parquet")
    _manifest_with(hosts=[{"file": "../../elsewhere"}, {"file": "/etc/hosts"}])(tmp_path / "run.parquet/manifest.json")
    files = [host.file for host in api.load(str(tmp_path / "run.parquet")).fleet.hosts]
    assert files == [str(tmp_path / "run.parquet" / name) for name in ("elsewhere", "hosts")]


def test_no_output_goes_into_a_reduced_run_that_is_read(make_run, tmp_path, capsys) -> None:
    target = tmp_path / "runs/run.parquet"
    target.parent.mkdir()
    api.reduce(str(make_run(2)), target)
    before = content(target)
    (tmp_path / "link").symlink_to(target)
    for into in (target / "steps.parquet", target / "new.json", tmp_path / "link" / "manifest.json"):
        for command in (["timeline", str(target)], ["history", str(target.parent), "--format", "json"]):
            assert cli.main([*command, "-o", str(into)]) == 2
            assert "is an input and would be overwritten" in capsys.readouterr().err
    assert content(target) == before


# --- where it is written -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["name", "slash", "dot", "link", "dangling link"])
def test_a_target_by_any_name_is_written(make_run, tmp_path, monkeypatch, how: str) -> None:
    folder, target = make_run(2), tmp_path / "run.parquet"
    if how != "dangling link":
        api.reduce(str(make_run(2, name="other", seed=3)), target)
    link = tmp_path / "link"
    link.symlink_to(target)
    if how == "dot":
        monkeypatch.chdir(target)
    given = {"name": target, "slash": target / ".." / "run.parquet", "dot": Path(), "link": link}.get(how, link)
    api.reduce(str(folder), given)
    monkeypatch.chdir(tmp_path)
    api.reduce(str(folder), tmp_path / "once.parquet")
    assert content(target) == content(tmp_path / "once.parquet")
    assert link.is_symlink()
    assert {path.name for path in tmp_path.iterdir()} <= {"run", "other", "run.parquet", "once.parquet", "link"}


def test_a_target_that_cannot_be_written_is_one_clear_line_and_what_was_there_stays(
    make_run, tmp_path, monkeypatch, capsys
) -> None:
    folder, target = make_run(2), tmp_path / "run.parquet"
    api.reduce(str(make_run(2, name="other", seed=3)), target)
    before = content(target)
    assert cli.main(["reduce", str(folder), "-o", str(tmp_path / ("n" * 250))]) == 2
    assert cli.main(["reduce", str(folder), "-o", str(tmp_path / ("n" * 300))]) == 2
    rename = Path.rename

    def full(self: Path, to: Path) -> Path:
        if self.name == "new":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", full)
    assert cli.main(["reduce", str(folder), "-o", str(target)]) == 2
    *_, last = lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "cannot be written" in last and "the same command goes on" in last
    assert content(target) == before
    monkeypatch.undo()
    assert api.reduce(str(folder), target).hosts_resumed == 2


def test_a_target_that_is_being_written_is_left_to_who_writes_it(make_run, tmp_path) -> None:
    folder, target = make_run(3), tmp_path / "run.parquet"
    refused: list[int] = []

    def meanwhile(done: int, of: int) -> None:
        with pytest.raises(UsageError, match="is being written by another profiler reduce"):
            api.reduce(str(folder), target)
        refused.append(done)

    assert api.reduce(str(folder), target, progress=meanwhile).hosts_resumed == 0
    assert refused == [1, 2, 3]


def test_a_profile_that_changes_before_its_spans_are_read_is_an_error(make_run, write_host, tmp_path) -> None:
    folder = make_run(1)

    def change(done: int, of: int) -> None:
        write_host(folder / "host-0.xplane.pb", "host-0", seed=9)

    with pytest.raises(UnreadableError, match="changed while it was read"):
        api.reduce(str(folder), tmp_path / "run.parquet", progress=change)
    assert not (tmp_path / "run.parquet").exists()
