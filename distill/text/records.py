"""Documents from ArrayRecord files, read and shuffled by grain.

A record is a serialised tf.train.Example, as tokenised and plain corpora are commonly stored: token ids in an int64
feature (`tokens`, `input_ids` or `inputs`), or text in a bytes feature (`text`), which then takes a tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from profiler.errors import UnreadableError, UsageError

_TOKENS = ("tokens", "input_ids", "inputs")
_TEXT = "text"
_SAMPLE = 64  # documents whose mean length says how many a row takes


class RecordText:
    """The documents of a set of files, shuffled anew each time they are through.

    Args:
        files: a path, whose last part may be a pattern.
        tokenizer: a tokenizer.json of the `tokenizers` library; "" for records of token ids.
        seed: of the shuffle.

    Raises:
        UsageError: no such files, or a library that is missing.
        UnreadableError: no ArrayRecord files, or no records in them.
    """

    def __init__(self, files: str, tokenizer: str, seed: int):
        paths = sorted(str(path) for path in Path(files).parent.glob(Path(files).name))
        if not paths:
            raise UsageError("no such files", file=files, remedy="grain_train_files takes a local path or pattern")
        try:
            import grain
        except ImportError as error:
            raise UsageError(
                "dataset_type=grain needs the grain package", remedy="pip install grain, or dataset_type=bundled"
            ) from error
        try:
            source = grain.sources.ArrayRecordDataSource(paths)
            count = len(source)
        except Exception as error:  # the reader is native code: what it raises for a damaged file is not documented
            raise UnreadableError(f"no ArrayRecord files: {str(error).splitlines()[0]}", file=files) from error
        if count == 0:
            raise UnreadableError("no records", file=files)
        self._files = files
        self._encode = _tokenizer(tokenizer) if tokenizer else None
        self._records = grain.MapDataset.source(source).seed(seed).shuffle().repeat()
        self._sample = range(min(count, _SAMPLE))

    def document(self, index: int) -> np.ndarray:
        """Token ids of one document: int32 [n].

        Raises:
            UnreadableError: a record that holds neither token ids nor text.
            UsageError: text, and no tokenizer.
        """
        features = dict(_features(self._records[index], self._files))
        for name in _TOKENS:
            if isinstance(features.get(name), list):
                return np.array(features[name], dtype=np.int32)
        text = features.get(_TEXT)
        if not isinstance(text, bytes):
            raise UnreadableError(
                f"record {index} has neither {', '.join(_TOKENS)} (int64) nor {_TEXT} (bytes)", file=self._files
            )
        if self._encode is None:
            raise UsageError("the records are text", file=self._files, remedy="set tokenizer_path to a tokenizer.json")
        return np.array(self._encode(text.decode(errors="replace")), dtype=np.int32)

    def documents_per_row(self, length: int) -> int:
        """As many as fill the row at the mean length of a sample."""
        mean = float(np.mean([len(self.document(index)) for index in self._sample]))
        return max(1, int(np.ceil(length / max(mean, 1.0))))


def _tokenizer(path: str) -> Callable[[str], list[int]]:
    """Text to token ids."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UsageError("tokenizer_path needs the tokenizers package", remedy="pip install tokenizers") from error
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the library raises bare Exception
        raise UnreadableError(f"no tokenizer: {error}", file=path, remedy="a tokenizer.json is expected") from error
    return lambda text: tokenizer.encode(text).ids


def _features(record: bytes, file: str) -> Iterator[tuple[str, list[int] | bytes]]:
    """The int64 and bytes features of a tf.train.Example: (name, numbers or the first bytes value).

    Example.features = 1, Features.feature = 1 (a map: key = 1, value = 2), Feature.bytes_list = 1 and int64_list = 3,
    each list with its values in field 1.
    """
    try:
        for _, features in _fields(record):
            for _, entry in _fields(features):
                parts = dict(_fields(entry))
                for kind, values in _fields(parts.get(2, b"")):
                    if kind == 1:
                        yield parts[1].decode(), next((value for _, value in _fields(values)), b"")
                    elif kind == 3:
                        yield parts[1].decode(), [number for _, value in _fields(values) for number in _numbers(value)]
    except (IndexError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise UnreadableError("a record is no tf.train.Example", file=file) from error


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of each field of a protobuf message: bytes, or an int for a varint."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        if tag & 7 == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value
        elif tag & 7 == 2:
            size, at = _varint(message, at)
            if at + size > len(message):
                raise ValueError("cut off")
            yield tag >> 3, message[at : at + size]
            at += size
        else:
            raise ValueError("a field of another kind")


def _numbers(value: int | bytes) -> Iterator[int]:
    """The varints of a packed list, or the one that stands alone."""
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        yield number


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A varint and where the next byte is."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
