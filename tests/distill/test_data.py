"""Packed batches: deterministic, resumable, and honest about document borders."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from distill.config import Config
from distill.data import PackedData, open_data
from distill.text import PAD
from distill.text.grammar import END, FIRST_BYTE, GrammarText, decode, encode
from profiler.errors import UsageError

KEYS = {"tokens", "targets", "segment_ids", "positions", "loss_mask"}


class Counting:
    """Document i is the number i + 1, i % 5 + 2 times; a row of any length sets three documents aside."""

    def document(self, index: int) -> np.ndarray:
        return np.full(index % 5 + 2, index + 1, dtype=np.int32)

    def documents_per_row(self, length: int) -> int:
        return 3


def test_a_batch_has_five_arrays_of_the_global_batch() -> None:
    batch = open_data(Config(per_device_batch_size=2, gradient_accumulation_steps=3, max_target_length=64), 4).batch(0)
    assert set(batch) == KEYS
    for array in batch.values():
        assert array.shape == (24, 64)
        assert array.dtype == np.int32


def test_one_seed_gives_the_same_batches_and_another_gives_others() -> None:
    def tokens(seed: int) -> np.ndarray:
        return open_data(Config(data_shuffle_seed=seed), 1).batch(3)["tokens"]

    assert np.array_equal(tokens(1), tokens(1))
    assert not np.array_equal(tokens(1), tokens(2))


def test_any_step_is_there_without_the_steps_before() -> None:
    straight, resumed = open_data(Config(), 2), open_data(Config(), 2)
    for step in range(5):
        last = straight.batch(step)
    later = resumed.batch(4)
    assert all(np.array_equal(last[key], later[key]) for key in KEYS)
    assert not np.array_equal(later["tokens"], resumed.batch(5)["tokens"])


def test_processes_that_make_their_own_rows_make_the_whole_batch() -> None:
    data = open_data(Config(), 4)
    whole = data.batch(2)
    parts = [data.batch(2, rows=rows) for rows in (np.arange(0, 16, 2), np.arange(1, 16, 2))]
    assert np.array_equal(whole["tokens"][::2], parts[0]["tokens"])
    assert np.array_equal(whole["tokens"][1::2], parts[1]["tokens"])


def test_a_global_batch_is_the_same_on_one_device_and_on_four() -> None:
    one = open_data(Config(per_device_batch_size=8), 1).batch(1)
    four = open_data(Config(per_device_batch_size=2), 4).batch(1)
    assert np.array_equal(one["tokens"], four["tokens"])


def test_targets_are_the_next_tokens_and_none_crosses_a_document() -> None:
    batch = PackedData(Counting(), global_batch=1, length=8, vocab_size=99).batch(0)
    row = {key: array[0].tolist() for key, array in batch.items()}
    assert row["tokens"] == [1, 1, 2, 2, 2, 3, 3, 3]
    assert row["targets"] == [1, 2, 2, 2, 3, 3, 3, 3]
    assert row["segment_ids"] == [1, 1, 2, 2, 2, 3, 3, 3]
    assert row["positions"] == [0, 1, 0, 1, 2, 0, 1, 2]
    assert row["loss_mask"] == [1, 0, 1, 1, 0, 1, 1, 1]


def test_a_row_that_its_documents_do_not_fill_is_padded_and_the_padding_is_never_a_target() -> None:
    batch = PackedData(Counting(), global_batch=1, length=12, vocab_size=99).batch(0)
    row = {key: array[0].tolist() for key, array in batch.items()}
    assert row["tokens"][9:] == [PAD] * 3
    assert row["segment_ids"][9:] == [0] * 3
    assert row["loss_mask"][8:] == [0] * 4


def test_rows_share_no_document() -> None:
    batch = PackedData(Counting(), global_batch=4, length=8, vocab_size=99).batch(0)
    rows = [set(row.tolist()) - {PAD} for row in batch["tokens"]]
    assert sum(len(row) for row in rows) == len(set().union(*rows))


def test_a_token_that_the_model_does_not_embed_is_refused() -> None:
    with pytest.raises(UsageError, match="the model embeds 0 to 1"):
        PackedData(Counting(), global_batch=1, length=8, vocab_size=2).batch(0)
    small = {"vocab_size": 64}
    with pytest.raises(UsageError, match="token ids"):
        open_data(Config(student_overrides=small, teacher_overrides=small), 1)


def test_the_bundled_text_fills_every_row() -> None:
    text = GrammarText(0)
    assert min(len(text.document(index)) for index in range(500)) >= 70
    assert open_data(Config(max_target_length=512), 8).batch(0)["segment_ids"].min() == 1


def test_the_bundled_text_can_be_read_back_and_ends_with_its_end_token() -> None:
    text = GrammarText(7)
    tokens = text.document(11)
    assert tokens[-1] == END
    assert tokens[:-1].min() >= FIRST_BYTE
    assert decode(tokens) == text.text(11)
    assert decode(encode("naïve")) == "naïve"


def test_the_sums_of_the_bundled_text_are_correct() -> None:
    words = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    value = {word: number for number, word in enumerate([*words.split(), "seventeen", "eighteen"])}
    sums = [
        sentence.split()
        for index in range(50)
        for sentence in GrammarText(0).text(index).rstrip(".\n").split(". ")
        if " make " in sentence
    ]
    assert sums
    assert all(value[left] + value[right] == value[total] for left, _, right, _, total in sums)


def test_the_bundled_text_repeats_what_a_document_is_about() -> None:
    assert all(len(set(GrammarText(0).text(index).split())) < 60 for index in range(50))
    assert len({GrammarText(0).text(index) for index in range(200)}) == 200


def test_record_files_that_are_not_there_are_named() -> None:
    with pytest.raises(UsageError, match="no such files"):
        open_data(Config(dataset_type="grain", grain_train_files="/nowhere/*.arrayrecord"), 1)


@pytest.mark.skipif(importlib.util.find_spec("grain") is not None, reason="grain is installed")
def test_without_grain_the_error_says_what_to_install(tmp_path: Path) -> None:
    file = tmp_path / "a.arrayrecord"
    file.write_bytes(b"")
    with pytest.raises(UsageError, match="pip install grain"):
        open_data(Config(dataset_type="grain", grain_train_files=str(file)), 1)
