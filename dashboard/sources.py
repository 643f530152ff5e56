"""What the dashboard may read: files below the folders that it was started on, the samples, and a session's uploads.

    sources = Sources.of(["logs", "base=runs/a.xplane.pb"])
    sources.resolve("logs/2026_12_01_10_00_00")   # a PATH argument for profiler, every file of it checked

A text from the browser is looked up below the folders and nowhere else. No symbolic link below a folder is followed,
nor is a name that begins with a dot. What is outside and what does not exist get the same answer. Between the check and
the opening of a file somebody who may write to the folder could exchange it; against that there is no check.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dashboard.uploads import PREFIX, Uploads
from profiler.errors import ProfilerError, UnreadableError
from profiler.xplane.locate import RUN_NAME, SUFFIXES, Side, is_reduced, locate
from profiler.xplane.runs import Runs, runs

SAMPLES = "samples"
CONFIGS = (".yml", ".yaml", ".json")
MOST_CHARACTERS = 16_384
_LABEL = re.compile(r"(?P<label>[^=/\\:]+)=(?P<path>.+)", re.DOTALL)
_SHOWN = 200  # characters of a refused text


@dataclass(frozen=True, slots=True)
class Root:
    """A folder below which files may be read, or one file.

    Attributes:
        name: what paths below it begin with when they are shown; no two roots have the same.
        given: as it was typed, made absolute; real: without symbolic links.
    """

    name: str
    given: Path
    real: Path


class Sources:
    """The roots of one server, and its uploads."""

    def __init__(self, paths: Sequence[Path] = (), *, samples: bool = True):
        """Takes the roots as they are now; later links do not move them.

        Args:
            paths: folders or files; symbolic links among them, and above them, are followed.
            samples: whether the sample profiles are a root.

        Raises:
            UnreadableError: a path does not exist.
        """
        self.uploads = Uploads()
        self.opened: tuple[str, ...] = ()
        found = [_root(path) for path in dict.fromkeys(paths)]
        self.roots = tuple(_named(found, _samples() if samples else None))

    @classmethod
    def of(cls, arguments: Sequence[str]) -> Sources:
        """The roots and the recordings that the arguments of a command line name.

        A folder is a root, whose runs can be chosen. A file, a run folder, a reduced run, a URL (it is fetched now) and
        anything with a label or a comma is a recording to begin with (``opened``), and may be read.

        Raises:
            UnreadableError: an argument names nothing that could be read.
        """
        folders: list[Path] = []
        recordings: list[tuple[str, list[Path]]] = []
        for argument in arguments:
            if _is_folder(argument) and not _is_run(Path(argument).expanduser()):
                folders.append(Path(argument).expanduser())
                continue
            side = locate(argument)
            if any(recording.remote for recording in side.recordings):
                from profiler.xplane.fetch import fetch

                fetch(side.recordings)  # files like others from here on: no URL that a browser names is ever opened
            recordings.append((side.label if side.named else _own_label(side), _paths(side)))
        sources = cls([*folders, *(path for _, paths in recordings for path in paths)])
        sources.opened = tuple(
            (f"{label}=" if label else "") + ",".join(sources.short(path) for path in paths)
            for label, paths in recordings
        )
        return sources

    def runs(self) -> tuple[tuple[Root, Runs], ...]:
        """The runs below every root, newest first."""
        return tuple((root, runs(root.real)) for root in self.roots)

    def short(self, path: str | Path) -> str:
        """A path below a root as people read it, which ``resolve`` takes: the root's name and what follows."""
        path = Path(path)
        for root in self.roots:
            for base in (root.real, root.given):
                if path.is_relative_to(base):
                    return "/".join([root.name, *path.relative_to(base).parts])
        return path.name

    def resolve(self, text: str, session: str | None = None) -> str:
        """The PATH argument for profiler that a text from the browser means.

        Args:
            text: a path below a root, absolute or relative, or beginning with the root's name; ``upload:…``; several
                with commas; ``label=`` before. Of a log folder the latest run, as it is now.
            session: whose uploads it may name; None for the browser session whose script runs.

        Raises:
            UnreadableError: it may not be read, or is not there, or holds no profile.
        """
        try:
            return self._resolved(text, session)
        except OSError as error:
            raise UnreadableError(f"cannot be read: {error.strerror or error}", file=_shown(text)) from error

    def _resolved(self, text: str, session: str | None) -> str:
        label, places = self._places(text, session)
        if len(places) > 1 and any("," in str(place) for place in places):
            raise UnreadableError("paths with commas cannot be joined by commas", file=_shown(text))
        side = _located(",".join(map(str, places)), text)
        files = [each for group in _files(side) for each in group]
        for file in files:
            self._refuse_unless_plain(file, text)
        # The folder of the files, not the log folder above it: what was checked is what is opened.
        answer = ",".join(str(path) for path in _paths(side))
        label = label or _own_label(side)
        answer = f"{label}={answer}" if label else answer
        if [each for group in _files(_located(answer, text)) for each in group] != files:
            raise _refusal(text)
        return answer

    def config(self, text: str, session: str | None = None) -> Path:
        """The configuration file that a text from the browser means, by the same rules.

        Raises:
            UnreadableError: as ``resolve``; or its name is none of a configuration.
        """
        place = self._place(text, session)
        if place is None or not place.is_file():
            raise _refusal(text)
        if place.suffix.lower() not in CONFIGS:
            raise UnreadableError("is no configuration: .yml, .yaml or .json", file=_shown(text))
        return place

    def _places(self, text: str, session: str | None) -> tuple[str, list[Path]]:
        """(label, what each part means); what exists as it stands is not taken apart."""
        if len(text) > MOST_CHARACTERS:
            raise _refusal(text)
        whole = self._place(text, session)
        if whole:
            return "", [whole]
        match = _LABEL.fullmatch(text)
        label, rest = (match["label"].strip(), match["path"]) if match else ("", text)
        whole = self._place(rest, session)
        if whole:
            return label, [whole]
        places = [self._place(part, session) for part in rest.split(",") if part]
        if not places or None in places:
            raise _refusal(text)
        return label, [place for place in places if place]

    def _place(self, part: str, session: str | None) -> Path | None:
        """The file or folder that one path means, None where it may not be read or is not there."""
        part = part.strip()
        if part.startswith(PREFIX):
            return self.uploads.path(browser() if session is None else session, part)
        if not part or "\0" in part or part.startswith("~") or len(part) > MOST_CHARACTERS:
            return None
        path = Path(part)
        for root, rest in self._readings(path):
            if _plain(root.real, rest):
                return root.real.joinpath(*rest)
        return None

    def _readings(self, path: Path) -> list[tuple[Root, tuple[str, ...]]]:
        """The ways to read a path: a root, and the parts below it."""
        if path.is_absolute():
            bases = [(root, base) for root in self.roots for base in (root.real, root.given)]
            return [(root, path.relative_to(base).parts) for root, base in bases if path.is_relative_to(base)]
        parts, found = path.parts, []
        for root in self.roots:
            name = tuple(root.name.split("/"))
            if parts[: len(name)] == name:
                found.append((root, parts[len(name) :]))
        return found + [(root, parts) for root in self.roots]

    def _refuse_unless_plain(self, file: Path, text: str) -> None:
        """Every file that profiler would open lies below a root, without links, or is an upload that was found."""
        if self.uploads.holds(file):
            return
        if not any(_plain(root.real, rest) for root, rest in self._readings(file)):
            raise _refusal(text)
        if file.is_dir() and _has_links(file):  # a reduced run is a folder of tables
            raise _refusal(text)


def browser() -> str:
    """The browser session whose script runs here; "" outside of one. A page that is loaded again is another session."""
    from streamlit.runtime.scriptrunner import get_script_run_ctx

    context = get_script_run_ctx(suppress_warning=True)
    return context.session_id if context else ""


def _plain(top: Path, parts: tuple[str, ...]) -> bool:
    """Whether a regular file or a folder is there, and neither it nor a folder between is a link or hidden."""
    if any(part.startswith(".") or "\0" in part for part in parts):
        return False
    here = top
    try:
        mode = here.lstat().st_mode
        for part in parts:
            here = here / part
            mode = here.lstat().st_mode
            if stat.S_ISLNK(mode):
                return False
        # Junctions and other links that lstat does not call by this name.
        same = os.path.normcase(os.path.realpath(here)) == os.path.normcase(here)
    except (OSError, ValueError):
        return False
    return same and (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _has_links(folder: Path) -> bool:
    """Whether anything in a folder, however deep, is a link."""
    if os.path.normcase(os.path.realpath(folder)) != os.path.normcase(folder):
        return True
    with os.scandir(folder) as entries:
        found = list(entries)
    return any(entry.is_symlink() or (entry.is_dir() and _has_links(folder / entry.name)) for entry in found)


def _refusal(text: str) -> UnreadableError:
    """One answer to all that may not be read: what lies elsewhere on the disk is nobody's business."""
    return UnreadableError(
        "is not below a folder of the dashboard, is a link, or does not exist",
        file=_shown(text),
        remedy="start it with the folder: profiler dashboard FOLDER",
    )


def _shown(text: str) -> str:
    text = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text) or "''"


def _located(argument: str, text: str) -> Side:
    """``locate``, whose failures name the text that was typed instead of the place on the disk."""
    for part in argument.split(","):
        folder = Path(part)
        if _is_folder(part) and not any(file.name.endswith(SUFFIXES) for file in folder.iterdir()):
            stopped = [note for note in runs(folder).notes if note.code == "runs_stopped"]
            if stopped:
                raise UnreadableError("holds too much to look for its latest run: name a run", file=_shown(text))
    try:
        return locate(argument)
    except ProfilerError as error:
        raise UnreadableError(error.what, file=_shown(text), remedy=error.remedy) from error


def _files(side: Side) -> list[tuple[Path, ...]]:
    return [recording.files for recording in side.recordings]


def _paths(side: Side) -> list[Path]:
    """Each recording as one path: its file, or the folder of all its hosts."""
    return [files[0].absolute() if len(files) == 1 else files[0].absolute().parent for files in _files(side)]


def _own_label(side: Side) -> str:
    """The label of a side where its paths alone would not say it: that of a log folder. Empty where they do."""
    plain = locate(",".join(str(path) for path in _paths(side))).label
    return side.label if side.label != plain and _LABEL.fullmatch(f"{side.label}=x") else ""


def _is_run(folder: Path) -> bool:
    """Whether a folder is one run: named by its time, or reduced."""
    return bool(RUN_NAME.fullmatch(folder.absolute().name)) or is_reduced(folder)


def _is_folder(text: str) -> bool:
    try:
        return Path(text).expanduser().is_dir()
    except (OSError, ValueError, RuntimeError):
        return False


def _root(path: Path) -> Root:
    given = path.expanduser().absolute()
    try:
        return Root(given.name or str(given), given, given.resolve(strict=True))
    except (OSError, ValueError, RuntimeError) as error:
        raise UnreadableError("no such file or folder", file=_shown(str(path))) from error


def _samples() -> Root:
    import sample_profiles

    folder = sample_profiles.path("").absolute()
    return Root(SAMPLES, folder, folder.resolve())


def _named(found: list[Root], samples: Root | None) -> list[Root]:
    """The roots with names of their own: those of one name get their folder's before it, then a number."""
    taken = {samples.name} if samples else set()
    named = []
    for root in found:
        names = [root.name, f"{root.given.parent.name}/{root.name}", *(f"{root.name}-{n}" for n in range(2, 10_000))]
        if sum(other.name == root.name for other in found) > 1 and root.given.parent.name:
            names = names[1:]
        name = next(name for name in names if name not in taken)
        taken.add(name)
        named.append(Root(name, root.given, root.real))
    return [*named, samples] if samples else named
