"""A result without what tells where and by whom it was made: hosts, folders, URLs, users.

``redacted`` takes any result, before it is rendered, so that every format hides the same. Placeholders are stable: the
first host of a result is ``host-1`` wherever it appears, the first folder ``path-1``. Base names of files stay, folders
go (``/home/ada/run/step.py`` is ``path-1/step.py``); source locations keep the file and line alone; versions stay.

What is hidden: hosts and file names that the recording calls its hosts, values of keys that name a host, a user or a
path, absolute paths, URLs, e-mail and private network addresses, and the users whose homes appear; each of them also
inside of other text. A name that nothing marks as one of these (a run's name, a knob's value) stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

Result = TypeVar("Result")

# Words that are no secret and mean something else in a report.
_COMMON = frozenset(
    """
    host hosts localhost device devices cpu gpu tpu node nodes server main root user users home admin ubuntu runner jax
    xla train trainer training test tests run runs step steps trace profile profiler base baseline opt optimized before
    after first last none null true false auto default remat offload shared public unknown name path
    """.split()  # noqa: SIM905
)
_HOST_KEY = re.compile(
    r"(?i)(^|[._-])(host|hosts|host_?names?|node|node_?names?|machine|server|coordinator|coordinator_address|address)$"
)
_USER_KEY = re.compile(r"(?i)(^|[._-])(user|user_?name|owner|author|login|e?mail|account|created_by|submitted_by)$")
_PATH_KEY = re.compile(
    r"(?i)(^|[._-]|log|tmp|out|work|file|home)(paths?|dirs?|directory|files?|folder|root|bucket|url|uri|location)$"
)
_VERSIONS = "versions"
_FILE_FIELDS = ("file", "files")

# User, password and query go whole: they may hold what ends a path elsewhere.
_URL = (
    r"[A-Za-z][A-Za-z0-9+.-]{1,15}://(?:[^\s/?#\"<>|]*@)?[^\s'\"<>|,;()\[\]{}?#]+"
    r"(?:[?#](?:[^\s\"<>|]*[^\s\"<>|'.:,;()\[\]{}])?)?"
)
_WINDOWS = r"(?<![A-Za-z0-9])[A-Za-z]:[\\/][^\s'\"<>|,;:()\[\]{}]+|\\\\[\w.$-]+\\[^\s'\"<>|,;:()\[\]{}]+"
_UNIX = r"(?<![\w/.)\]}>-])(?:~[\w.-]*)?/[\w.+@%=~-]+(?:/[\w.+@%=~-]+)+/?|(?<![\w/.)\]}>-])~[\w.-]*/[\w.+@%=~-]+"
_PATHS = re.compile(f"{_URL}|{_WINDOWS}|{_UNIX}")
_HOMES = re.compile(r"(?i)(?:^|[\\/])(?:home|users|usr/local/home)[\\/]+([^\\/\s:'\"]+)|(?:^|[\s='\"])~([\w.-]+)/")
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_DOMAINS = r"com|net|org|edu|gov|io|dev|ai|cloud|internal|local|localdomain|lan|corp|intra|prod|invalid"
_NAMED = re.compile(rf"(?i)(?<![\w.@/-])(?:[a-z0-9][a-z0-9-]*\.)+(?:{_DOMAINS})(?![\w.-])")
_PRIVATE = re.compile(r"(?<![\w.])(?:10|127|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2,3}(?![\w.])")
# Files are named by hosts in the folder of a run: below plugins/profile, named by its time, or reduced.
_RUN_FILE = re.compile(
    r"(?:plugins[\\/]profile[\\/][^\\/]+|(?:^|[\\/])\d{4}(?:_\d\d){2}[_-]\d\d(?:_\d\d){2}[^\\/]*|\.parquet)"
    r"[\\/]([^\\/]+?)\.xplane\.pb(?:\.gz)?$"
)
_EXTENSION = re.compile(r"\.[A-Za-z]\w{0,9}(?:\.gz)?(?::\d+)?$")
_NO_PATH = re.compile(r"/(device|host|job|replica|task):")
_LEAST, _MOST = 3, 4096  # letters of a name that is looked for inside of other text


def redacted(result: Result) -> Result:
    """The same result with placeholders for hosts, folders, URLs and users; equal results give equal ones."""
    names = _Names()
    for key, text, place in _texts(result):
        names.collect(key, text, place)
    changed: Result = _mapped(result, names.rewrite, "", _Place())
    return changed


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a text stands: in a run's own configuration, in its versions, in a compiled profile (which has no host)."""

    info: bool = False
    versions: bool = False
    compiled: bool = False


@dataclass(slots=True)
class _Names:
    """What was found, and the placeholder of each in the order in which they are met."""

    hosts: dict[str, int] = field(default_factory=dict)
    users: dict[str, int] = field(default_factory=dict)
    folders: dict[str, int] = field(default_factory=dict)
    literal: dict[str, None] = field(default_factory=dict)  # paths as they are written, relative ones too
    read: dict[tuple[str, _Place], None] = field(default_factory=dict)
    said: dict[tuple[str, str, _Place], str] = field(default_factory=dict)
    words: re.Pattern[str] | None = None
    written: re.Pattern[str] | None = None

    def collect(self, key: str, text: str, place: _Place) -> None:
        """Remembers what a text tells."""
        if place.versions:
            return
        if key in _FILE_FIELDS and not place.info:
            for part in text.split(", "):
                self._path(part)
        elif place.info and _is_path(key, text):
            self._path(text)
        elif _HOST_KEY.search(key) and (place.info or key == "host"):
            for part in text.split(",") if not place.compiled else ():
                self._host(part.strip())
        elif place.info and _USER_KEY.search(key):
            self._user(text)
        if (text, place) in self.read:
            return
        self.read[text, place] = None
        for path in _PATHS.findall(text) if "/" in text or "\\" in text else ():
            self._path(path)
        for match in _MAIL.finditer(text):
            self._user(match[0])
        for pattern in (_NAMED, _PRIVATE) if place.info else (_NAMED,):
            for match in pattern.finditer(_PATHS.sub(" ", text)):
                self._host(match[0])

    def rewrite(self, key: str, text: str, place: _Place) -> str:
        """The text with placeholders; texts repeat, and are rewritten once."""
        known = self.said.get((key, text, place))
        if known is None:
            known = self.said[key, text, place] = self._rewritten(key, text, place)
        return known

    def _rewritten(self, key: str, text: str, place: _Place) -> str:
        if place.versions or not text:
            return text
        if key == "source":
            return self._spoken(_base(text))
        if key == "label" and "/" in text and not place.info:  # a folder tells runs of one name apart
            return self._spoken(_base(text))
        if key in _FILE_FIELDS and not place.info:
            return ", ".join(self._spoken(self._placed(part)) for part in text.split(", "))
        if place.info and _is_path(key, text):
            return self._spoken(self._placed(text))
        if text.casefold() in self.hosts and key == "host":
            return f"host-{self.hosts[text.casefold()]}"
        if text.casefold() in self.users and _USER_KEY.search(key):
            return f"user-{self.users[text.casefold()]}"
        if self.written is None:
            found = sorted(
                (each for each in self.literal if _LEAST < len(each) <= _MOST), key=lambda each: (-len(each), each)
            )
            known = [rf"(?<![\w/\\]){re.escape(each)}(?![\w/\\])" for each in found]
            self.written = re.compile("|".join([*known, _PATHS.pattern]))
        return self._spoken(self.written.sub(lambda match: self._placed(match[0]), text))

    def _host(self, name: str) -> None:
        name = re.sub(r":\d+$", "", name).casefold()
        if name and name not in _COMMON and name not in self.hosts:
            self.hosts[name] = max(self.hosts.values(), default=0) + 1
            # "node-7.example.com" is called "node-7" too.
            short = name.partition(".")[0]
            if any(char.isdigit() for char in short) and not short.isdigit():
                self.hosts.setdefault(short, self.hosts[name])

    def _user(self, name: str) -> None:
        name = name.strip().casefold()
        if name and name not in _COMMON and name not in self.users:
            self.users[name] = max(self.users.values(), default=0) + 1
            if "@" in name:
                self.users.setdefault(name.partition("@")[0], self.users[name])

    def _path(self, text: str) -> None:
        text = text.rstrip(".")
        for home, tilde in _HOMES.findall(text):
            self._user(home or tilde)
        if found := _RUN_FILE.search(text):
            self._host(found[1])
        folder, _ = _split(text)
        if folder:
            self.literal.setdefault(text)
            self.folders.setdefault(folder, len(self.folders) + 1)

    def _placed(self, text: str) -> str:
        """A path with a placeholder for its folders."""
        path = text.rstrip(".")
        folder, base = _split(path)
        if not folder:
            return text
        number = self.folders.setdefault(folder, len(self.folders) + 1)
        return f"path-{number}" + (f"/{base}" if base else "") + text[len(path) :]

    def _spoken(self, text: str) -> str:
        """Hosts and users inside of a text."""
        if self.words is None:
            known = {name for name in (*self.hosts, *self.users) if _LEAST <= len(name) <= _MOST}
            ordered = sorted(known, key=lambda name: (-len(name), name))
            body = "|".join(re.escape(name) for name in ordered) or r"(?!)"
            self.words = re.compile(rf"(?i)(?<![^\W_])(?:{body})(?![^\W_])")
        return self.words.sub(lambda match: self._word(match[0].casefold()), text)

    def _word(self, name: str) -> str:
        if name in self.hosts:
            return f"host-{self.hosts[name]}"
        return f"user-{self.users[name]}" if name in self.users else "name"


def _is_path(key: str, text: str) -> bool:
    """Whether a value of a configuration is a path as a whole."""
    if not text or _NO_PATH.match(text):
        return False
    start = text.startswith(("/", "~/", "./", "../", "\\\\")) or re.match(r"[A-Za-z]:[\\/]|[A-Za-z][\w+.-]*://", text)
    named = bool(_PATH_KEY.search(key)) and text.casefold() not in _COMMON
    return bool(start and not re.search(r"\s--", text)) or named


def _split(path: str) -> tuple[str, str]:
    """(folder, base name): a last part without an extension is a folder too."""
    path = re.split(r"[?#]", path)[0] if "://" in path else path
    at = max(path.rfind("/"), path.rfind("\\"))
    base = path[at + 1 :]
    if _EXTENSION.search(base) and (at > 0 or "://" not in path):
        return path[: at + 1], base
    return path.rstrip("/\\") or path, ""


def _base(source: str) -> str:
    return source[max(source.rfind("/"), source.rfind("\\")) + 1 :]


# --- walking a result ------------------------------------------------------------------------------------------------


def _inside(value: Any, name: str, place: _Place) -> _Place:
    """The place of a field or key of ``value``."""
    if name in ("run_info", "config"):
        return replace(place, info=True)
    if name == _VERSIONS:
        return replace(place, versions=True)
    if is_dataclass(value) and getattr(value, "kind", None) == "compiled":
        return replace(place, compiled=True)
    return place


def _key(value: Any, name: str, key: str) -> tuple[str, _Place | None]:
    """What a field's text is called: the sides of a knob are its key's values, those of a config delta are files."""
    if name in ("baseline", "optimized"):
        if hasattr(value, "moves") and hasattr(value, "key"):
            return str(value.key), _Place(info=True, versions=value.source == _VERSIONS)
        if hasattr(value, "written_defaults"):
            return "file", None
    if name in ("before", "after") and hasattr(value, "key") and hasattr(value, "source"):  # of a history
        return str(value.key), _Place(info=True, versions=value.source == _VERSIONS)
    return name, None


def _texts(value: Any, key: str = "", place: _Place = _Place()) -> Iterator[tuple[str, str, _Place]]:
    """Every text of a result with the name of its field and its place, in order."""
    if isinstance(value, str):
        yield key, value, place
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            name, other = _key(value, each.name, key)
            yield from _texts(getattr(value, each.name), name, other or _inside(value, each.name, place))
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield "", str(name), place
            yield from _texts(item, str(name), _inside(value, str(name), place))
    elif isinstance(value, list | tuple | set | frozenset):
        for item in sorted(value, key=str) if isinstance(value, set | frozenset) else value:
            yield from _texts(item, key, place)
    elif hasattr(value, "iter_columns"):
        for column in value.iter_columns():
            if column.dtype == _text_type():
                for text in column.unique(maintain_order=True).drop_nulls():
                    yield column.name, text, place


def _mapped(value: Any, change: Callable[[str, str, _Place], str], key: str, place: _Place) -> Any:
    """The result with every text changed; everything else is the same."""
    if isinstance(value, str):
        return change(key, value, place)
    if is_dataclass(value) and not isinstance(value, type):
        new = {}
        for each in fields(value):
            name, other = _key(value, each.name, key)
            item = getattr(value, each.name)
            new[each.name] = _mapped(item, change, name, other or _inside(value, each.name, place))
        return replace(value, **new)
    if isinstance(value, Mapping):
        return {
            change("", name, place) if isinstance(name, str) else name: _mapped(
                item, change, str(name), _inside(value, str(name), place)
            )
            for name, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(_mapped(item, change, key, place) for item in value)
    if hasattr(value, "iter_columns"):
        texts = [column for column in value.iter_columns() if column.dtype == _text_type()]
        return value.with_columns(_column(column, change, place) for column in texts)
    return value


def _column(column: Any, change: Callable[[str, str, _Place], str], place: _Place) -> Any:
    import polars as pl

    known = {text: change(column.name, text, place) for text in column.unique(maintain_order=True).drop_nulls()}
    return pl.Series(column.name, [None if text is None else known[text] for text in column], dtype=pl.String)


def _text_type() -> Any:
    import polars as pl

    return pl.String
