"""Names, stats and damaged tables."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from profiler.errors import UnreadableError
from profiler.xplane import scan
from profiler.xplane.read import opened, plane_names
from profiler.xplane.schema import xspace
from profiler.xplane.write import Ref, SpaceBuilder


def names_of(data: bytes):
    return plane_names(data, scan.index(data).planes[0])


def test_stats_of_every_kind_are_decoded() -> None:
    space = SpaceBuilder()
    space.plane("p", stats={"i": -3, "u": 2**63 + 1, "d": 0.5, "s": "text", "b": b"\xff", "r": Ref("shared")})
    names = names_of(space.to_bytes())
    assert names.stats == {"i": -3, "u": 2**63 + 1, "d": 0.5, "s": "text", "b": b"\xff", "r": "shared"}
    assert names.stat_id("none") == -1


def test_a_compressed_text_stat_is_unpacked() -> None:
    plane = xspace().XPlane(name=b"p")
    plane.stat_metadata.add(key=1).value.name = b"stack"
    plane.stats.add(metadata_id=1, gzip_value=gzip.compress(b"frame\n" * 1000))
    plane.stats.add(metadata_id=2, gzip_value=b"not gzip")
    data = xspace().XSpace(planes=[plane]).SerializeToString()
    assert names_of(data).stats["stack"] == "frame\n" * 1000
    assert names_of(data).stats[""] == ""


def test_a_name_that_is_not_utf8_costs_its_letters_only() -> None:
    space = SpaceBuilder()
    space.plane("p").line("l").event("bad\udcffname", 0, 1)
    ((_, event),) = names_of(space.to_bytes()).events()
    assert event.name == "bad\ufffdname"


def test_one_broken_entry_does_not_take_the_others_with_it() -> None:
    space = SpaceBuilder()
    line = space.plane("p").line("l")
    for name in ("first", "second", "third"):
        line.event(name, 0, 1)
    data = space.to_bytes().replace(b"\x12\x06second", b"\x12\x7fsecond")  # the name's length runs past its entry
    names = names_of(data)
    assert names.damaged
    assert [event.name for _, event in names.events()] == ["first", "third"]


def test_a_file_that_cannot_be_opened_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="cannot be read"), opened(tmp_path / "none.xplane.pb"):
        pass


def test_binary_data_with_some_replacement_characters_is_not_taken_for_text(tmp_path: Path) -> None:
    space = SpaceBuilder()
    space.plane("p").line("l").event("\ufffd" * 500, 0, 2**40)
    path = space.write(tmp_path / "x.xplane.pb")
    with opened(path) as (data, _):
        assert len(scan.index(data).planes) == 1
