"""What a browser may make the dashboard read: files below its folders, the samples, its own uploads, nothing else."""

from __future__ import annotations

import gzip
import io
import os
import stat
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sample_profiles
from dashboard import uploads
from dashboard.sources import SAMPLES, Sources
from dashboard.uploads import Uploads
from profiler import api
from profiler.errors import ProfilerError, UnreadableError
from profiler.xplane.locate import REDUCED, locate

SAMPLE = sample_profiles.path("cpu-remat/baseline.xplane.pb.gz").read_bytes()
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """``open/`` is the folder of the dashboard, ``secret/`` is not."""
    for file in (
        "open/a.xplane.pb.gz",
        "open/lr=0.1.xplane.pb.gz",
        "open/a,b.xplane.pb.gz",
        "open/logs/plugins/profile/2026_11_30_10_00_00/host-0.xplane.pb.gz",
        "open/logs/plugins/profile/2026_11_30_10_00_00/host-1.xplane.pb.gz",
        "open/logs/plugins/profile/2026_11_30_09_00_00/host-0.xplane.pb.gz",
        "open/.hidden/a.xplane.pb.gz",
        "secret/a.xplane.pb.gz",
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(SAMPLE)
    (tmp_path / "open/run.yml").write_text("batch: 1")
    (tmp_path / "open/key.pem").write_text("batch: 1")
    (tmp_path / "secret/run.yml").write_text("batch: 1")
    return tmp_path


@pytest.fixture
def sources(disk: Path) -> Sources:
    return Sources([disk / "open"])


def files(argument: str) -> list[Path]:
    return [file for recording in locate(argument).recordings for file in recording.files]


@pytest.mark.parametrize(
    ("text", "names", "label"),
    [
        ("a.xplane.pb.gz", ["a.xplane.pb.gz"], "a"),
        ("open/a.xplane.pb.gz", ["a.xplane.pb.gz"], "a"),
        ("first=a.xplane.pb.gz", ["a.xplane.pb.gz"], "first"),
        ("lr=0.1.xplane.pb.gz", ["lr=0.1.xplane.pb.gz"], "lr=0.1"),
        ("a,b.xplane.pb.gz", ["a,b.xplane.pb.gz"], "a,b"),
        ("logs", ["host-0.xplane.pb.gz", "host-1.xplane.pb.gz"], "logs"),
        ("new=open/logs", ["host-0.xplane.pb.gz", "host-1.xplane.pb.gz"], "new"),
        ("logs/plugins/profile/2026_11_30_09_00_00", ["host-0.xplane.pb.gz"], "2026_11_30_09_00_00"),
        ("a.xplane.pb.gz,logs", ["a.xplane.pb.gz", "host-0.xplane.pb.gz", "host-1.xplane.pb.gz"], "a"),
        ("./a.xplane.pb.gz", ["a.xplane.pb.gz"], "a"),
    ],
)
def test_a_text_means_what_it_means_on_the_command_line(sources, text, names, label):
    side = locate(sources.resolve(text))
    assert [file.name for recording in side.recordings for file in recording.files] == names
    assert side.label == label


def test_of_a_log_folder_the_run_that_was_checked_is_what_is_opened(sources, disk):
    path = sources.resolve("logs")
    later = disk / "open/logs/plugins/profile/2026_12_30_10_00_00"
    later.mkdir()
    (later / "host-0.xplane.pb.gz").write_bytes(SAMPLE)
    assert {file.parent.name for file in files(path)} == {"2026_11_30_10_00_00"}


def test_the_samples_can_be_read_everywhere(sources):
    path = sources.resolve("samples/cpu-remat/baseline.xplane.pb.gz")
    assert api.summary(path).steps.count > 1
    assert [root.name for root in sources.roots] == ["open", SAMPLES]


OUTSIDE = [
    "../secret/a.xplane.pb.gz",
    "open/../../secret/a.xplane.pb.gz",
    "logs/../../secret/a.xplane.pb.gz",
    "logs/..",
    "..",
    "~",
    "~root",
    "~/a.xplane.pb.gz",
    "/etc/passwd",
    "/",
    "//",
    "/proc/self/fd",
    "/proc/self/fd/0",
    "/dev/stdin",
    "a.xplane.pb.gz\0",
    "\0",
    "",
    " ",
    ",",
    "=",
    "label=",
    "label=/etc/passwd",
    "label=../secret",
    "a.xplane.pb.gz,../secret/a.xplane.pb.gz",
    "a.xplane.pb.gz,/etc/passwd",
    "x" * 300,
    "x/" * 8000,
    "x" * 1_000_000,
    ".hidden",
    ".hidden/a.xplane.pb.gz",
    "file:///etc/passwd",
    "upload:",
    "upload:../../a.xplane.pb",
    "upload:0123456789abcdef/a.xplane.pb",
    "nothing.xplane.pb",
    "samples/../a.xplane.pb.gz",
    "..\\secret\\a.xplane.pb.gz",
    "．．/secret/a.xplane.pb.gz",
    "‥/secret/a.xplane.pb.gz",
    "..／secret／a.xplane.pb.gz",
    "\udcff.xplane.pb",
]


@pytest.mark.parametrize("text", OUTSIDE, ids=lambda text: ascii(text[:30]))
def test_what_is_outside_and_what_does_not_exist_get_the_same_answer(sources, text):
    with pytest.raises(UnreadableError) as refused:
        sources.resolve(text)
    with pytest.raises(UnreadableError) as absent:
        sources.resolve("nothing.xplane.pb")
    assert refused.value.what == absent.value.what
    assert len(str(refused.value)) < 500
    assert str(refused.value).isprintable()


def test_absolute_paths_of_what_is_there_and_what_is_not_get_the_same_answer(sources, disk):
    said = set()
    for path in (disk / "secret/a.xplane.pb.gz", disk / "secret", disk / "secret/nothing.xplane.pb", disk):
        with pytest.raises(UnreadableError) as refused:
            sources.resolve(str(path))
        said.add(str(refused.value).replace(str(path), "PATH"))
    assert len(said) == 1


@POSIX
@pytest.mark.parametrize(
    ("link", "target", "texts"),
    [
        ("link.xplane.pb.gz", "../secret/a.xplane.pb.gz", ["link.xplane.pb.gz"]),
        ("inner.xplane.pb.gz", "a.xplane.pb.gz", ["inner.xplane.pb.gz"]),
        ("folder", "../secret", ["folder", "folder/a.xplane.pb.gz"]),
        ("plugins", "logs/plugins", ["plugins", "plugins/profile"]),
        ("logs/plugins/profile/2026_11_30_10_00_00/host-2.xplane.pb", "/etc/passwd", ["logs"]),
        ("2026_12_01_00_00_00", "logs/plugins/profile/2026_11_30_10_00_00", ["2026_12_01_00_00_00"]),
        ("loop", "loop", ["loop", "loop/a.xplane.pb"]),
        ("fd", "/proc/self/fd", ["fd", "fd/0"]),
        ("dangling.xplane.pb", "nothing", ["dangling.xplane.pb"]),
    ],
)
def test_links_below_a_folder_are_not_followed(sources, disk, link, target, texts):
    (disk / "open" / link).symlink_to(target)
    for text in texts:
        with pytest.raises(UnreadableError):
            sources.resolve(text)


@POSIX
def test_links_in_the_folder_of_a_reduced_run_are_not_followed(sources, disk):
    folder = disk / "open/reduced"
    folder.mkdir()
    (folder / "manifest.json").write_text(f'{{"format": "{REDUCED}"}}')
    assert files(sources.resolve("reduced")) == [folder.resolve()]
    (folder / "ops.parquet").symlink_to("/etc/passwd")
    with pytest.raises(UnreadableError):
        sources.resolve("reduced")


@POSIX
def test_a_folder_that_is_itself_a_link_is_the_folder_it_was_at_the_start(disk):
    (disk / "entry").symlink_to("open")
    sources = Sources([disk / "entry"])
    for text in ("entry/a.xplane.pb.gz", str(disk / "entry/a.xplane.pb.gz"), str(disk / "open/a.xplane.pb.gz")):
        assert files(sources.resolve(text)) == [(disk / "open/a.xplane.pb.gz").resolve()]
    (disk / "entry").unlink()
    (disk / "entry").symlink_to("secret")
    assert files(sources.resolve("entry/a.xplane.pb.gz")) == [(disk / "open/a.xplane.pb.gz").resolve()]


@POSIX
def test_what_is_no_file_is_not_opened(sources, disk):
    os.mkfifo(disk / "open/pipe.xplane.pb")
    with pytest.raises(UnreadableError):
        sources.resolve("pipe.xplane.pb")


def test_a_name_that_unicode_writes_in_two_ways_is_the_file_or_is_refused(sources, disk):
    composed = unicodedata.normalize("NFC", "über.xplane.pb.gz")
    (disk / "open" / composed).write_bytes(SAMPLE)
    for text in (composed, unicodedata.normalize("NFD", composed)):
        try:
            (file,) = files(sources.resolve(text))
        except UnreadableError:
            continue
        assert file.samefile(disk / "open" / composed)


@given(st.text(max_size=80))
def test_no_text_at_all_leads_outside(text):
    sources = Sources()
    try:
        found = files(sources.resolve(text))
    except ProfilerError:
        return
    assert all(file.is_relative_to(sources.roots[0].real) for file in found)


@given(st.lists(st.sampled_from(["..", ".", "open", "secret", "logs", "", "~", "a.xplane.pb.gz", "*", "samples"])))
def test_no_path_of_known_parts_leads_outside(tmp_path_factory, parts):
    top = tmp_path_factory.getbasetemp() / "parts"
    for name in ("open", "secret"):
        (top / name).mkdir(parents=True, exist_ok=True)
        (top / name / "a.xplane.pb.gz").write_bytes(b"x")
    sources = Sources([top / "open"], samples=False)
    for text in ("/".join(parts), f"{top}/open/" + "/".join(parts), "label=" + "/".join(parts)):
        try:
            found = files(sources.resolve(text))
        except ProfilerError:
            continue
        assert found == [(top / "open/a.xplane.pb.gz").resolve()]


def test_a_file_that_was_named_is_readable_and_its_neighbours_are_not(disk):
    sources = Sources([disk / "open/a.xplane.pb.gz"], samples=False)
    assert files(sources.resolve("a.xplane.pb.gz")) == [(disk / "open/a.xplane.pb.gz").resolve()]
    for text in ("run.yml", "lr=0.1.xplane.pb.gz", str(disk / "open/a,b.xplane.pb.gz"), "a.xplane.pb.gz/../run.yml"):
        with pytest.raises(UnreadableError):
            sources.resolve(text)


def test_a_configuration_goes_through_the_same_check(sources, disk):
    assert sources.config("run.yml") == (disk / "open/run.yml").resolve()
    for text in ("../secret/run.yml", str(disk / "secret/run.yml"), "key.pem", "logs", "nothing.yml", "~/run.yml"):
        with pytest.raises(UnreadableError):
            sources.config(text)


def test_paths_with_commas_are_not_joined_by_commas(disk):
    sources = Sources([(disk / "open").rename(disk / "a,b")])
    assert len(files(sources.resolve("logs"))) == 2
    with pytest.raises(UnreadableError, match="commas"):
        sources.resolve("a.xplane.pb.gz,logs")


def test_one_host_of_a_run_can_be_chosen(sources):
    path = sources.resolve("logs/plugins/profile/2026_11_30_10_00_00/host-1.xplane.pb.gz")
    assert [file.name for file in files(path)] == ["host-1.xplane.pb.gz"]


def test_a_short_path_leads_back(sources):
    for root, found in sources.runs():
        for run in found.runs:
            short = sources.short(run.path)
            assert short.startswith(root.name)
            assert tuple(files(sources.resolve(short))) == run.files


def test_arguments_are_folders_and_recordings(disk):
    both = Sources.of([str(disk / "open"), f"old={disk / 'secret/a.xplane.pb.gz'}", str(disk / "open/logs")])
    assert [root.name for root in both.roots] == ["open", "logs", "a.xplane.pb.gz", SAMPLES]
    assert both.opened == ("old=a.xplane.pb.gz",)
    assert files(both.resolve(both.opened[0])) == [(disk / "secret/a.xplane.pb.gz").resolve()]
    with pytest.raises(UnreadableError):
        both.resolve(str(disk / "secret/run.yml"))
    with pytest.raises(UnreadableError, match="no such file"):
        Sources.of([str(disk / "nothing")])


def test_roots_of_one_name_are_told_apart(disk):
    for side in ("x", "y"):
        (disk / side).mkdir()
        (disk / side / "a.xplane.pb.gz").write_bytes(SAMPLE)
    sources = Sources.of([str(disk / "x/a.xplane.pb.gz"), str(disk / "y/a.xplane.pb.gz")])
    assert sources.opened == ("x/a.xplane.pb.gz", "y/a.xplane.pb.gz")
    assert [files(sources.resolve(text))[0].parent.name for text in sources.opened] == ["x", "y"]


# --- uploads ---------------------------------------------------------------------------------------------------------


def test_an_upload_is_seen_by_its_own_session_only(sources):
    text = sources.uploads.add("one", "run.xplane.pb.gz", io.BytesIO(SAMPLE))
    assert api.summary(sources.resolve(text, "one")).steps.count > 1
    assert sources.uploads.texts("one") == (text,)
    assert sources.uploads.texts("two") == ()
    kept = files(sources.resolve(text, "one"))[0]
    for guess in (text, str(kept), f"label={text}"):
        with pytest.raises(UnreadableError):
            sources.resolve(guess, "two")


@POSIX
def test_uploads_lie_where_only_this_user_may_look(disk):
    held = Uploads()
    held.add("one", "run.xplane.pb", io.BytesIO(b"x"))
    assert stat.S_IMODE(held.folder.stat().st_mode) == 0o700


def test_uploads_that_lie_below_a_folder_cannot_be_reached_through_it(tmp_path, monkeypatch):
    monkeypatch.setattr(uploads.tempfile, "tempdir", str(tmp_path))
    sources = Sources([tmp_path], samples=False)
    text = sources.uploads.add("one", "run.xplane.pb.gz", io.BytesIO(SAMPLE))
    kept = files(sources.resolve(text, "one"))[0]
    assert kept.is_relative_to(tmp_path)
    with pytest.raises(UnreadableError):
        sources.resolve(str(kept.relative_to(tmp_path)), "two")
    assert sources.runs()[0][1].runs == ()


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("../../etc/cron.d/x.xplane.pb", "x.xplane.pb"),
        ("C:\\runs\\x.xplane.pb.gz", "x.xplane.pb.gz"),
        (".xplane.pb", "profile.xplane.pb"),
        ("a,b=c d\0\n.yml", "a_b_c_d__.yml"),
        ("ÜBER.XPLANE.PB", "_BER.xplane.pb"),
        ("x" * 500 + ".xplane.pb", "x" * 80 + ".xplane.pb"),
    ],
)
def test_names_of_uploads_are_made_plain(name, kept):
    held = Uploads()
    text = held.add("one", name, io.BytesIO(b"x"))
    assert text.split("/")[-1] == kept
    path = held.path("one", text)
    assert path is not None and path.read_bytes() == b"x"


@pytest.mark.parametrize("name", ["x.py", "x.pb", "x.yml.exe", "xplane.pb.gz.sh", "", "/", "x.xplane.pb/"])
def test_other_kinds_of_files_are_not_taken(name):
    with pytest.raises(UnreadableError, match="is none of"):
        Uploads().add("one", name, io.BytesIO(b"x"))


def test_equal_content_is_kept_once():
    held = Uploads()
    assert held.add("one", "a.yml", io.BytesIO(b"x")) == held.add("one", "a.yml", io.BytesIO(b"x"))
    assert len(held.texts("one")) == 1


def test_the_oldest_uploads_go_when_all_are_too_large():
    held = Uploads(most_bytes=100)
    first, second, third = (held.add("one", "a.yml", io.BytesIO(bytes([n]) * 40)) for n in range(3))
    assert held.texts("one") == (second, third)
    assert held.path("one", first) is None
    with pytest.raises(UnreadableError, match="is larger than"):
        held.add("one", "a.yml", io.BytesIO(b"x" * 101))
    assert len(list(held.folder.rglob("*.yml"))) == 2
    assert [path for path in held.folder.iterdir() if path.is_file()] == []


def test_an_old_upload_goes_without_a_newer_one_of_equal_content():
    held = Uploads(most_bytes=100)
    held.add("one", "a.yml", io.BytesIO(b"x" * 60))
    newer = held.add("one", "b.yml", io.BytesIO(b"x" * 60))
    assert held.texts("one") == (newer,)
    kept = held.path("one", newer)
    assert kept is not None and kept.read_bytes() == b"x" * 60


def test_a_gzip_bomb_is_not_kept():
    held = Uploads(most_bytes=1 << 20)
    bomb = gzip.compress(b"\0" * (11 << 20))
    with pytest.raises(UnreadableError, match="unpacks to more than 10 MiB"):
        held.add("one", "a.xplane.pb", io.BytesIO(bomb))  # whatever its name says
    assert [path for path in held.folder.rglob("*") if path.is_file()] == []


def test_a_damaged_gzip_file_is_left_to_the_reader_to_explain(sources):
    text = sources.uploads.add("one", "a.xplane.pb.gz", io.BytesIO(SAMPLE[: len(SAMPLE) // 2]))
    with pytest.raises(UnreadableError, match="the gzip file is cut or damaged"):
        api.summary(sources.resolve(text, "one"))
