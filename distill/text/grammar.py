"""The bundled text: short stories and sums that a small grammar writes, in bytes.

A document is about one animal with one name, one thing and one place, which return in most sentences, so that a model
gains first from letter frequencies, then from spelling, then from word order, and last from remembering what the
document is about. Sums are correct. Nothing is downloaded; document i of a seed is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

END = 1  # the token that ends a document
FIRST_BYTE = 2  # token of byte 0: byte b is token b + 2
VOCAB_SIZE = FIRST_BYTE + 256

_NAMES = ("ada", "bruno", "cleo", "dario", "elsa", "finn", "greta", "hugo", "ines", "jonas", "kira", "leo")
_ANIMALS = (
    "badger",
    "crane",
    "donkey",
    "ferret",
    "goose",
    "heron",
    "lynx",
    "marten",
    "otter",
    "raven",
    "stoat",
    "toad",
)
_THINGS = ("apple", "basket", "candle", "drum", "feather", "kettle", "ladder", "mirror", "needle", "ribbon", "shell")
_PLACES = (
    "barn",
    "bridge",
    "forest",
    "garden",
    "harbour",
    "hill",
    "lake",
    "market",
    "meadow",
    "mill",
    "river",
    "tower",
)
_COLOURS = ("amber", "black", "blue", "brown", "green", "grey", "red", "violet", "white", "yellow")
_VERBS = ("carries", "drops", "finds", "hides", "keeps", "loses", "mends", "paints", "sells", "watches")
_TIMES = ("at dawn", "at noon", "at night", "in spring", "in summer", "in autumn", "in winter", "every day")
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen")

_SENTENCES = (
    "{name} the {animal} {verb} the {colour} {thing}",
    "{time} the {animal} walks to the {place}",
    "the {thing} of {name} is {colour}",
    "{name} {verb} the {thing} near the {place} {time}",
    "in the {place} {name} meets a {other}",
    "the {other} asks {name} for the {colour} {thing}",
    "{left} and {right} make {total}",
)
_MIN_SENTENCES, _MAX_SENTENCES = 3, 9
_MIN_BYTES = 70  # no document is shorter; a test holds it


class GrammarText:
    """Documents of one seed, without end.

    Args:
        seed: any whole number from 0 on; another seed tells other stories.
    """

    def __init__(self, seed: int):
        self.seed = seed

    def document(self, index: int) -> np.ndarray:
        """Token ids of one document, END last: int32 [n]."""
        return encode(self.text(index))

    def documents_per_row(self, length: int) -> int:
        """As many as the shortest documents need to fill the row."""
        return -(-length // _MIN_BYTES)

    def text(self, index: int) -> str:
        """One document as text."""
        rng = np.random.default_rng((self.seed, index))
        # One draw for all choices: a generator call per word would cost more than the training step of a tiny model.
        draws: Iterator[int] = iter(rng.integers(0, 2**31, size=6 + 6 * _MAX_SENTENCES).tolist())

        def pick(words: tuple[str, ...]) -> str:
            return words[next(draws) % len(words)]

        topic = {"name": pick(_NAMES), "animal": pick(_ANIMALS), "thing": pick(_THINGS), "place": pick(_PLACES)}
        topic["colour"] = pick(_COLOURS)
        sentences = []
        for _ in range(_MIN_SENTENCES + next(draws) % (_MAX_SENTENCES - _MIN_SENTENCES + 1)):
            left, right = next(draws) % 10, next(draws) % 10
            sentence = pick(_SENTENCES).format(
                **topic,
                verb=pick(_VERBS),
                time=pick(_TIMES),
                other=pick(_ANIMALS),
                left=_NUMBERS[left],
                right=_NUMBERS[right],
                total=(_NUMBERS + _TEENS)[left + right],
            )
            sentences.append(sentence)
        return ". ".join(sentences) + ".\n"


def encode(text: str) -> np.ndarray:
    """Token ids of a text, END last: int32 [bytes + 1]."""
    data = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32) + FIRST_BYTE
    return np.append(data, np.int32(END))


def decode(tokens: np.ndarray) -> str:
    """The text of token ids, without the tokens that are no bytes."""
    tokens = np.asarray(tokens)
    held = tokens[(tokens >= FIRST_BYTE) & (tokens < VOCAB_SIZE)] - FIRST_BYTE
    return held.astype(np.uint8).tobytes().decode(errors="replace")
