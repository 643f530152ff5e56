"""The dashboard opens the URLs that it was started on, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.errors import UnreadableError
from profiler.xplane.locate import locate

pytest.importorskip("streamlit")


def test_urls_of_the_command_line_become_files_and_none_of_the_browser_is_opened(web, profile: bytes) -> None:
    from dashboard.sources import Sources

    secret = f"{web.url}/a.xplane.pb.gz?sig=s3cret"
    web.files["/a.xplane.pb.gz"] = web.files["/other.xplane.pb.gz"] = profile
    web.pages["/run/"] = '<a href="h0.xplane.pb.gz">0</a><a href="h1.xplane.pb.gz">1</a>'
    web.files["/run/h0.xplane.pb.gz"] = web.files["/run/h1.xplane.pb.gz"] = profile
    sources = Sources.of([secret, f"two={web.url}/run/", f"{web.url}/run/"])
    sides = [locate(sources.resolve(text, "")) for text in sources.opened]
    assert [side.label for side in sides] == ["a", "two", "run"]
    assert [len(side.recordings[0].files) for side in sides] == [1, 2, 2]
    assert all(file.read_bytes() == profile for side in sides for file in side.recordings[0].files)
    assert "s3cret" not in str(sources.opened)
    web.gets.clear()
    here = Path(sides[0].recordings[0].files[0])
    for text in (
        secret,
        f"{web.url}/a.xplane.pb.gz",
        f"{web.url}/other.xplane.pb.gz",
        f"x={web.url}/other.xplane.pb.gz",
        f"{sources.opened[0]},{web.url}/other.xplane.pb.gz",
        f"{web.url}/run/../other.xplane.pb.gz",
        "memory:///a.xplane.pb",
        f"file://{here}",
    ):
        with pytest.raises(UnreadableError, match="is not below a folder of the dashboard"):
            sources.resolve(text, "")
        with pytest.raises(UnreadableError, match="is not below a folder of the dashboard"):
            sources.config(text, "")
    assert not web.gets
