"""Recordings in object stores and on web servers: what lies at a URL and below it.

    name, files = find("gs://bucket/run/logs")   # a file, a run, or a log folder's latest run, as on the disk

fsspec reads them (the extra ``remote``); this module is imported when a URL is met. profiler.xplane.fetch brings the
files here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from profiler.errors import UnreadableError
from profiler.xplane.locate import RUN_NAME, SUFFIXES, host_name
from profiler.xplane.remote_errors import ATTEMPTS, MISSING, attempt, explained
from profiler.xplane.urls import shown
from profiler.xplane.workers import Workers

TIMEOUT_S = 30  # without a byte from a web server
MOST_DEPTH = 12  # levels of folders that are looked through
MOST_FOLDERS = 2_000
PIECE_BYTES = 1 << 20
_OVER_HTTP = "over http give the URL of a file, or of a folder with an index page"

_WEB = ("http", "https")
# What they log, whole URLs among it, is for those who set up logging: without this Python writes it to stderr.
_LIBRARIES = (
    "adlfs",
    "aiobotocore",
    "aiohttp",
    "azure",
    "botocore",
    "fsspec",
    "gcsfs",
    "google",
    "huggingface_hub",
    "s3fs",
)
# What tells one content from another, the surest first.
_VERSIONS = (
    ("generation", "etag", "md5hash", "content-md5", "sha256", "blob_id", "checksum"),
    ("lastmodified", "last-modified", "last_modified", "updated", "mtime", "modified", "created"),
)
_QUIET = logging.NullHandler()


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One object as it was when it was looked up.

    Attributes:
        name: the last part of its path; untrusted.
        shown: its URL without secrets.
        url: with its secrets, which go into no message.
        size: bytes; None where the server does not say.
        version: what identifies the content; "" where nothing but the size does.
        md5: of the content, where the store knows it.
        modified: seconds since 1970, 0 where unknown.
        path: how ``fs`` calls it.
    """

    name: str
    shown: str
    url: str = field(repr=False)
    size: int | None
    version: str
    md5: bytes | None
    modified: float
    path: str = field(repr=False)
    fs: Any = field(repr=False, compare=False)

    @property
    def ranged(self) -> bool:
        """Whether its parts can be read by themselves, and be told to be of one version."""
        return bool(self.version) and self.size is not None


def is_web(url: str) -> bool:
    """Whether a URL is one of a web server."""
    return url.partition("://")[0].lower() in _WEB


def read_small(url: str, most: int) -> bytes:
    """The content of a small object, such as a configuration; it is not kept.

    Raises:
        UnreadableError: it cannot be read, or has more than ``most`` bytes.
    """
    found = _Place.of(url)
    data = attempt(_beginning, found.fs, found.path, most + 1, url=url)
    if len(data) > most:
        raise UnreadableError(f"is larger than {most >> 20} MiB", file=shown(url))
    return data


def _beginning(fs: Any, path: str, most: int) -> bytes:
    data = b""
    with fs.open(path, "rb", block_size=0 if is_web(path) else PIECE_BYTES) as file:
        while len(data) < most and (piece := file.read(min(PIECE_BYTES, most - len(data)))):
            data += piece
    return data


def find(url: str) -> tuple[str, tuple[RemoteFile, ...]]:
    """(name, files) of the recording at a URL, by the rules for the disk; see profiler.xplane.locate.

    Raises:
        UnreadableError: nothing is there, it may not be read, or it holds no .xplane.pb file.
    """
    found = _Place.of(url)
    try:
        info = attempt(found.fs.info, found.path, url=url)
    except UnreadableError as error:
        if found.web and not found.name.endswith(SUFFIXES) and not error.remedy:
            raise UnreadableError(error.what, file=error.file, remedy=_OVER_HTTP) from error.__cause__
        raise
    page = found.web and info.get("mimetype") == "text/html" and not found.name.endswith(SUFFIXES)
    if info.get("type") == "directory" or page:
        return found.run()
    file = found.file(info)
    return host_name(Path(file.name)), (file,)


@dataclass(frozen=True, slots=True)
class _Place:
    """A URL, opened: the store, and the path in it."""

    url: str
    fs: Any
    path: str

    @classmethod
    def of(cls, url: str) -> _Place:
        scheme = url.partition("://")[0].lower()
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            needed = "URLs need fsspec"
            raise UnreadableError(needed, file=shown(url), remedy="pip install 'profiler[remote]'") from None
        if "::" in url or scheme in ("file", "local"):
            raise UnreadableError(
                "is no URL of a store", file=shown(url), remedy="name files of this machine by their path"
            )
        for library in _LIBRARIES:
            logging.getLogger(library).addHandler(_QUIET)
        try:
            fs, path = url_to_fs(url, **_options(scheme, url))
        except Exception as error:
            raise explained(error, url) from None
        fs.invalidate_cache()  # a listing of before says nothing of now
        return cls(url, fs, path)

    @property
    def web(self) -> bool:
        return is_web(self.url)

    @property
    def name(self) -> str:
        """The last part of the path, decoded where URLs are encoded."""
        name = shown(self.url).partition("://")[2].rstrip("/").rpartition("/")[2]
        return (unquote(name) if self.web else name) or urlsplit(shown(self.url)).netloc

    def file(self, info: Mapping[str, Any], below: tuple[str, ...] = ()) -> RemoteFile:
        """One object by what the store says of it; ``below`` are the parts under this place."""
        path = str(info["name"]) if below else self.path
        known = _known(info)
        return RemoteFile(
            name=below[-1] if below else self.name,
            shown="/".join([shown(self.url).rstrip("/"), *below]),
            url="/".join([self.url.rstrip("/"), *below]) if below else self.url,
            size=_size(known),
            version=_version(known),
            md5=_md5(known),
            modified=max(_seconds(known.get(key)) for key in _VERSIONS[1]),
            path=path,
            fs=self.fs,
        )

    def run(self) -> tuple[str, tuple[RemoteFile, ...]]:
        """The run that this folder is, or the latest run below it."""
        runs = self._runs()
        if () in runs:
            return self.name, self._files((), runs[()])
        below = {parts: files for parts, files in runs.items() if parts[-3:-1] == ("plugins", "profile")}
        if self.name == "profile" or not below:
            below |= {parts: files for parts, files in runs.items() if len(parts) == 1}
        if not below:
            remedy = "give a file, a run folder, or a log folder above plugins/profile"
            raise UnreadableError(
                "holds no .xplane.pb file", file=shown(self.url), remedy=_OVER_HTTP if self.web else remedy
            )
        last = max(_stamped(parts[-1]) for parts in below)
        # Only runs of one time, or of none, are told apart by their files: a server may have to be asked for each.
        found = {parts: self._files(parts, files) for parts, files in below.items() if _stamped(parts[-1]) == last}
        latest = max(found, key=lambda parts: (max(file.modified for file in found[parts]), parts))
        return self.name or latest[-1], found[latest]

    def _runs(self) -> dict[tuple[str, ...], dict[str, Mapping[str, Any]]]:
        """The profiles of every folder, by the folder's parts below this one; below a run nothing is looked for."""
        found: dict[tuple[str, ...], dict[str, Mapping[str, Any]]] = {}
        level: list[tuple[tuple[str, ...], str]] = [((), self.path)]
        seen = 0
        with Workers.of([self.fs]) as workers:
            for _ in range(MOST_DEPTH):
                seen += len(level)
                if seen > MOST_FOLDERS:
                    raise UnreadableError(
                        f"holds more than {MOST_FOLDERS:,} folders",
                        file=shown(self.url),
                        remedy="name the run's folder",
                    )
                listed = [workers.start(self._entries, path) for _, path in level]
                below = []
                for (parts, _), entries in zip(level, listed, strict=True):
                    for name, info in workers.result(entries).items():
                        if info.get("type") == "directory":
                            below.append(((*parts, name), str(info["name"])))
                        elif name.endswith(SUFFIXES):
                            found.setdefault(parts, {})[name] = info
                if () in found:
                    break
                level = [folder for folder in below if folder[0][-4:-2] != ("plugins", "profile")]
        return found

    def _entries(self, folder: str) -> dict[str, Mapping[str, Any]]:
        """What lies in a folder, by name; a name that leads elsewhere is none of a file in it."""
        entries = {}
        top = folder.rstrip("/") + "/"
        try:
            listed = attempt(self.fs.ls, folder, detail=True, url=self.url)
        except UnreadableError as error:
            if not (self.web and error.what == MISSING):
                raise
            listed = []  # a page without links
        for info in listed:
            path = str(info["name"])
            name = path[len(top) :].rstrip("/") if path.startswith(top) else ""
            name = unquote(name) if self.web else name
            if name not in ("", ".", "..") and not re.search(r"[/\\?#\x00-\x1f\x7f]", name):
                entries[name] = info
        return entries

    def _files(self, parts: tuple[str, ...], files: Mapping[str, Mapping[str, Any]]) -> tuple[RemoteFile, ...]:
        with Workers.of([self.fs]) as workers:
            found = [workers.start(self._file_below, (*parts, name), info) for name, info in sorted(files.items())]
            return tuple(map(workers.result, found))

    def _file_below(self, parts: tuple[str, ...], info: Mapping[str, Any]) -> RemoteFile:
        file = self.file(info, parts)
        if file.ranged:
            return file
        # An index page names files and says nothing of them.
        return self.file({**attempt(self.fs.info, file.path, url=self.url), "name": file.path}, parts)


def _options(scheme: str, url: str) -> dict[str, Any]:
    """How a store is opened; everything else is the business of its own environment variables and files."""
    if scheme not in _WEB:
        return {}
    try:
        from aiohttp import ClientTimeout
    except ImportError:
        return {}  # fsspec says what it lacks
    timeout = ClientTimeout(total=None, sock_connect=TIMEOUT_S, sock_read=TIMEOUT_S)
    # A URL that is encoded must not be encoded again, or its signature does not hold any more.
    return {"client_kwargs": {"timeout": timeout, "trust_env": True}, "encoded": "%" in url}


def version_now(file: RemoteFile, tries: int = ATTEMPTS) -> tuple[int | None, str]:
    """(size, version) of an object as it is now."""
    file.fs.invalidate_cache()
    known = _known(attempt(file.fs.info, file.path, url=file.url, tries=tries))
    return _size(known), _version(known)


def _known(info: Mapping[str, Any]) -> dict[str, Any]:
    """What a store says of an object, by names that differ less than theirs."""
    known = {str(key).lower(): value for key, value in info.items() if value not in (None, "")}
    large = known.get("lfs")  # of a model hub
    return {**known, **large} if isinstance(large, Mapping) else known


def _size(known: Mapping[str, Any]) -> int | None:
    size = known.get("size")
    return size if isinstance(size, int) and size >= 0 else None


def _version(known: Mapping[str, Any]) -> str:
    for key in (*_VERSIONS[0], *_VERSIONS[1]):
        if known.get(key):
            return f"{key}:{known[key]}"
    return ""


def _md5(known: Mapping[str, Any]) -> bytes | None:
    """MD5 where a field says by its name that it is one; an etag may be anything."""
    import base64
    import binascii

    settings = known.get("content_settings")
    value = known.get("md5hash") or known.get("content-md5")
    value = value or (settings.get("content_md5") if isinstance(settings, Mapping) else None)
    try:
        digest = base64.b64decode(value, validate=True) if isinstance(value, str) else bytes(value or b"")
    except (ValueError, TypeError, binascii.Error):
        return None
    return digest if len(digest) == 16 else None


def _seconds(value: Any) -> float:
    """A time as stores write it: a number, a datetime, ISO text, or that of an HTTP header."""
    if isinstance(value, str):
        for parse in (datetime.fromisoformat, parsedate_to_datetime):
            try:
                value = parse(value)
                break
            except (ValueError, TypeError):
                continue
    if isinstance(value, datetime):
        return value.timestamp()
    return float(value) if isinstance(value, int | float) else 0.0


def _stamped(name: str) -> str:
    """A name that is a time sorts as one; others come before."""
    return name if RUN_NAME.fullmatch(name) else ""
