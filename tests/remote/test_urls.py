"""URLs as texts: what is shown of them holds no secret."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.redact import redacted
from profiler.xplane.locate import split
from profiler.xplane.urls import is_remote, scrubbed, shown, shown_argument, unsigned

_word = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)
_secret = st.text(st.sampled_from("!$&*+=_.~%;,()'"), max_size=6).map(lambda text: f"s3cret{text}s3cret")


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("gs://bucket/a/b.xplane.pb", "gs://bucket/a/b.xplane.pb"),
        ("https://host/a.xplane.pb?sig=x#y", "https://host/a.xplane.pb"),
        ("https://ada:p@ss@host:80/a@b.xplane.pb", "https://host:80/a@b.xplane.pb"),
        ("s3://key:secret@bucket/x", "s3://bucket/x"),
        ("https://ada@host", "https://host"),
        ("https://host?token=x", "https://host"),
        ("runs/a?b.xplane.pb", "runs/a?b.xplane.pb"),
        (r"C:\runs\a.xplane.pb", r"C:\runs\a.xplane.pb"),
    ],
)
def test_what_is_shown_of_a_url(url: str, what: str) -> None:
    assert shown(url) == what


@settings(deadline=None)
@given(_word, _secret, _secret, _word, st.booleans())
def test_no_secret_of_a_url_is_shown(host: str, password: str, signature: str, name: str, labelled: bool) -> None:
    url = f"https://{host}:{password}@{host}/{name}.xplane.pb?x={signature}&y={signature}#{signature}"
    argument = f"{'label=' * labelled}{url},{url}"
    for text in (shown(url), shown_argument(argument), scrubbed(f"wrong: {argument} (again: {url})"), scrubbed(url)):
        assert "s3cret" not in text
        assert f"{host}/{name}.xplane.pb" in text


@settings(deadline=None)
@given(_secret, _secret)
def test_redaction_leaves_nothing_of_a_url(password: str, signature: str) -> None:
    url = f"https://ada:{password}@example.org/data/a.bin?x={signature}&y={signature}"
    for result in (
        {"run_info": {"dataset_path": url, "config": {"x": [url]}}, "message": f"{url} and {url}"},
        {"run_info": {"note": f"read from {url} and {url}"}},
        {"message": f"no such file: {url} (try again)"},
    ):
        assert "s3cret" not in str(redacted(result))
        assert "example" not in str(redacted(result))


@pytest.mark.parametrize(("text", "is_one"), [("gs://b", True), ("s3://b/x", True), ("C://x", False), ("a/b", False)])
def test_what_is_a_url(text: str, is_one: bool) -> None:
    assert is_remote(text) == is_one


@pytest.mark.parametrize(
    ("argument", "label", "parts"),
    [
        ("base=gs://b/x=1/a.xplane.pb", "base", ["gs://b/x=1/a.xplane.pb"]),
        ("gs://b/x=1/a.xplane.pb", None, ["gs://b/x=1/a.xplane.pb"]),
        ("gs://b/1,gs://b/2", None, ["gs://b/1", "gs://b/2"]),
        ("gs://b/1,2,3", None, ["gs://b/1,2,3"]),
        ("https://h/a?x=1,2&y=3,s3://b/c", None, ["https://h/a?x=1,2&y=3", "s3://b/c"]),
        ("n=local.xplane.pb,gs://b/1", "n", ["local.xplane.pb", "gs://b/1"]),
    ],
)
def test_arguments_with_urls_are_split(argument: str, label: str | None, parts: list[str]) -> None:
    assert split(argument) == (label, parts)


def test_what_only_signs_a_url_is_no_part_of_its_name() -> None:
    assert unsigned("https://h/a?X-Amz-Signature=1&id=2&Expires=3") == "https://h/a?id=2"
    assert unsigned("https://h/a?sig=1&se=2") == "https://h/a"
    assert unsigned("s3://b/a") == "s3://b/a"
