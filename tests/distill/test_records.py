"""Documents from ArrayRecord files, where grain is installed."""

from pathlib import Path

import numpy as np
import pytest

from distill.config import Config
from distill.data import open_data
from distill.text.records import _features
from profiler.errors import UnreadableError, UsageError


def varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def example(name: str, feature: bytes) -> bytes:
    """A tf.train.Example with one feature."""
    return field(1, field(1, field(1, name.encode()) + field(2, feature)))


def of_tokens(ids: list[int]) -> bytes:
    return example("tokens", field(3, field(1, b"".join(varint(i) for i in ids))))


def of_text(text: str) -> bytes:
    return example("text", field(1, field(1, text.encode())))


def write(file: Path, records: list[bytes]) -> str:
    module = pytest.importorskip("array_record.python.array_record_module")
    pytest.importorskip("grain")
    writer = module.ArrayRecordWriter(str(file), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    return str(file)


def config_of(files: str) -> Config:
    return Config(dataset_type="grain", grain_train_files=files, max_target_length=128)


def test_features_of_an_example_are_read_without_tensorflow() -> None:
    assert dict(_features(of_tokens([1, 300, 70000]), "f")) == {"tokens": [1, 300, 70000]}
    assert dict(_features(of_text("hé"), "f")) == {"text": "hé".encode()}
    unpacked = example("inputs", field(3, varint(1 << 3) + varint(5) + varint(1 << 3) + varint(6)))
    assert dict(_features(unpacked, "f")) == {"inputs": [5, 6]}


@pytest.mark.parametrize("record", [b"\xff\xff", b"rec0", of_tokens([1, 2])[:-2]])
def test_a_record_that_is_no_example_is_refused(record: bytes) -> None:
    with pytest.raises(UnreadableError, match=r"no tf.train.Example"):
        dict(_features(record, "f"))


def test_records_of_token_ids_are_shuffled_by_the_seed_and_resumable(tmp_path: Path) -> None:
    records = [of_tokens([number + 1] * (20 + number)) for number in range(50)]
    config = config_of(write(tmp_path / "a.arrayrecord", records))
    first, again = open_data(config, 1), open_data(config, 1)
    first.batch(0)
    assert np.array_equal(first.batch(9)["tokens"], again.batch(9)["tokens"])
    assert set(np.unique(first.batch(9)["tokens"])) <= set(range(51))


def test_records_of_text_ask_for_a_tokenizer(tmp_path: Path) -> None:
    files = write(tmp_path / "a.arrayrecord", [of_text("one")] * 3)
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        open_data(config_of(files), 1)


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    pytest.importorskip("grain")
    file = tmp_path / "a.arrayrecord"
    file.write_text("not records")
    with pytest.raises(UnreadableError, match="ArrayRecord"):
        open_data(config_of(str(file)), 1)
