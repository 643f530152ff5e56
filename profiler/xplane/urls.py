"""URLs as texts: which texts are some, how they are shown without secrets, and what of one names the object."""

from __future__ import annotations

import re

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://(?P<rest>.*)", re.DOTALL)
_BEGIN = r"[A-Za-z][A-Za-z0-9+.-]+://"
# A query's parts that only prove that one may read: a URL that is signed anew means the same object.
_SIGNING = re.compile(
    r"(?i)(x-(amz|goog|ms)-.*|signature|expires|awsaccesskeyid|googleaccessid|key-pair-id|policy|sig|se|sp|sr|sv|st|spr)="
)


def is_remote(text: str) -> bool:
    """Whether a text is a URL (``C://x`` is a path)."""
    return _URL.match(text) is not None


def shown(text: str) -> str:
    """A URL without user, password, query and fragment; any other text as it is."""
    match = _URL.fullmatch(text)
    if not match:
        return text
    place, slash, path = re.split(r"[?#]", match["rest"], maxsplit=1)[0].partition("/")
    return f"{match['scheme']}://{place.rpartition('@')[2]}{slash}{path}"


def shown_argument(text: str) -> str:
    """An argument of the command line, ``label=URL`` or ``URL,URL`` too, without the secrets of its URLs."""
    pieces = re.split(rf"({_BEGIN})", text)
    # Before the first URL, then (scheme, rest) of each; a comma at the end of a rest leads to the next one.
    said = pieces[0]
    for scheme, rest in zip(pieces[1::2], pieces[2::2], strict=True):
        said += shown(scheme + rest.rstrip(",")) + ("," if rest.endswith(",") else "")
    return said


def scrubbed(text: str) -> str:
    """Any text without the secrets of the URLs in it, which end at a space."""
    return re.sub(rf"{_BEGIN}\S*", lambda found: shown_argument(found[0]), text)


def unsigned(url: str) -> str:
    """A URL without what only signs it."""
    base, mark, query = url.partition("?")
    kept = [part for part in query.split("&") if part and not _SIGNING.match(part)]
    return base + (mark + "&".join(kept) if kept else "")
