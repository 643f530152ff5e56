"""Batches of packed text: the same for every run of one seed, and any step of it without the steps before.

Row r of a run takes documents from a range of its own, one after the other, until its T + 1 tokens are full; what is
left of the last document is dropped. So a row is a function of its number alone, and the state of the data is the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from distill.config import Config
from distill.text import PAD
from distill.text.grammar import GrammarText
from profiler.errors import UsageError

Batch = dict[str, np.ndarray]


class Source(Protocol):
    """Documents by number, without end: a finite set starts again, in another order."""

    def document(self, index: int) -> np.ndarray:
        """Token ids of one document: int32 [n]."""
        ...

    def documents_per_row(self, length: int) -> int:
        """Documents that a row of `length` tokens sets aside, so that most rows fill."""
        ...


class PackedData:
    """Batches of one run.

    Args:
        source: where the documents come from.
        global_batch: sequences per step, all devices and micro-batches together.
        length: T, tokens per sequence.
        vocab_size: V, what the model embeds.
    """

    def __init__(self, source: Source, global_batch: int, length: int, vocab_size: int):
        self.source, self.global_batch, self.length, self.vocab_size = source, global_batch, length, vocab_size
        self._reserved = source.documents_per_row(length + 1)

    def batch(self, step: int, rows: Sequence[int] | np.ndarray | None = None) -> Batch:
        """The batch of one step, counted from 0.

        Args:
            step: optimizer step.
            rows: which of its `global_batch` rows to make, for a process that holds some of them only; None: all.

        Returns:
            tokens, targets, segment_ids, positions and loss_mask, each int32 [rows, T]. Segments count from 1 in each
            row, 0 is padding; positions start at 0 in each document; loss_mask is 1 where the target is a further token
            of the same document.

        Raises:
            UsageError: a token id that the model does not embed.
        """
        chosen = range(self.global_batch) if rows is None else rows
        made = [self._row(step * self.global_batch + int(row)) for row in chosen]
        tokens, segments, positions = (np.stack(parts) for parts in zip(*made, strict=True))
        same = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
        return {
            "tokens": tokens[:, :-1],
            "targets": tokens[:, 1:],
            "segment_ids": segments[:, :-1],
            "positions": positions[:, :-1],
            "loss_mask": same.astype(np.int32),
        }

    def _row(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, segments and positions of one row: int32 [T + 1] each."""
        size = self.length + 1
        tokens = np.full(size, PAD, dtype=np.int32)
        segments, positions = np.zeros(size, dtype=np.int32), np.zeros(size, dtype=np.int32)
        start = 0
        for segment in range(1, self._reserved + 1):
            if start == size:
                break
            document = self.source.document(number * self._reserved + segment - 1)[: size - start]
            stop = start + len(document)
            tokens[start:stop], segments[start:stop] = document, segment
            positions[start:stop] = np.arange(stop - start)
            start = stop
        if tokens.min() < 0 or tokens.max() >= self.vocab_size:
            raise UsageError(
                f"the data has token ids {tokens.min()} to {tokens.max()}, the model embeds 0 to {self.vocab_size - 1}",
                remedy="take the tokenizer and the vocab_size of one model",
            )
        return tokens, segments, positions


def open_data(config: Config, num_devices: int) -> PackedData:
    """The data of a run on `num_devices` devices.

    Raises:
        UsageError: tokens that the model has no embedding for, files that are not there, or a library that is missing.
    """
    source: Source
    if config.dataset_type == "grain":
        from distill.text.records import RecordText

        source = RecordText(config.grain_train_files, config.tokenizer_path, config.data_shuffle_seed)
    else:
        source = GrammarText(config.data_shuffle_seed)
    rows, length = config.sequences_per_step(num_devices), config.max_target_length
    data = PackedData(source, rows, length, config.student.vocab_size)
    data.batch(0, rows=[0])  # what is wrong with the data shows here, before anything is compiled
    return data
