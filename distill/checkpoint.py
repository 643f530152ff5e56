"""Checkpoints: what a run needs to go on as if it had never stopped.

A checkpoint holds the student, the optimizer state, the step (which is all the state that the data has) and the
configuration. The teacher is not in it: it is frozen, so its source makes it again.

Orbax writes into a folder of another name and renames it when everything is on disk, and an old checkpoint is deleted
only after that: a crash, a full disk or ``kill -9`` at any moment leaves the last whole checkpoint, and that is the one
a resumed run takes.

Saving blocks the run. The next step donates the buffers that are being written, and a failed save should end the run
at the step it belongs to.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import re
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import orbax.checkpoint as ocp

from distill.state import TrainState
from profiler.errors import ProfilerError, UnreadableError

KEPT = 2  # the newest checkpoints that stay; more than one, so that damage to a file is not the end of a run


class CheckpointError(ProfilerError):
    """A checkpoint cannot be written. Earlier ones are still there."""


class Checkpoints:
    """The checkpoints of one run, in ``folder``; use as a context manager.

    Raises:
        CheckpointError: the folder cannot be made or written to.
    """

    def __init__(self, folder: Path, *, keep: int = KEPT):
        self.folder = folder.resolve()  # orbax takes no relative paths
        if self.folder.exists() and not self.folder.is_dir():
            raise CheckpointError("is not a folder", file=self.folder, remedy="name another folder with -o")
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, enable_async_checkpointing=False, cleanup_tmp_directories=True
        )
        with self._writing():
            self._manager = ocp.CheckpointManager(self.folder, options=options)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._manager.close()

    @property
    def latest(self) -> int | None:
        """The step of the newest whole checkpoint: how many steps it has behind it; None without any."""
        step: int | None = self._manager.latest_step()
        return step

    def save(self, step: int, state: TrainState, facts: Mapping[str, Any]) -> None:
        """Writes one checkpoint, unless there is one of this step; returns when it is whole.

        Args:
            step: steps done.
            state: what to save; its arrays may be sharded over devices and hosts.
            facts: JSON values to go with it, such as the configuration.

        Raises:
            CheckpointError: it cannot be written; earlier checkpoints are untouched.
        """
        if step == self.latest:
            return
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(state.params),
            training=ocp.args.StandardSave(_training(state)),
            facts=ocp.args.JsonSave(dict(facts)),
        )
        with self._writing():
            self._check_room(state)
            self._manager.save(step, args=items)

    def facts(self, step: int) -> dict[str, Any]:
        """What ``save`` was given as ``facts``.

        Raises:
            UnreadableError: the checkpoint is damaged.
        """
        with _reading(self.folder / str(step)):
            restored = self._manager.restore(step, args=ocp.args.Composite(facts=ocp.args.JsonRestore()))
            return dict(restored["facts"])

    def restore(self, step: int, like: TrainState) -> TrainState:
        """The state of a checkpoint, sharded as ``like`` says.

        Args:
            step: one that exists, such as ``latest``.
            like: ShapeDtypeStructs with shardings.

        Raises:
            UnreadableError: the checkpoint is damaged, or of another model or optimizer.
        """
        items = ocp.args.Composite(
            params=ocp.args.StandardRestore(like.params), training=ocp.args.StandardRestore(_training(like))
        )
        with _reading(self.folder / str(step)):
            restored = self._manager.restore(step, args=items)
            training = restored["training"]
            return TrainState(training["step"], restored["params"], training["opt_state"])

    def _check_room(self, state: TrainState) -> None:
        """A disk that is full is better found before orbax starts: half its threads would fail, each in its own words.

        Raises:
            OSError: this host's share of the state is larger than what is free, compression not counted.
        """
        size = sum(shard.data.nbytes for leaf in jax.tree.leaves(state) for shard in leaf.addressable_shards)
        free = shutil.disk_usage(self.folder).free
        if free < size:
            raise OSError(
                errno.ENOSPC, f"No space left on device: {free / 1e6:,.1f} MB free of {size / 1e6:,.1f} needed"
            )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with _quiet():
                yield
        except (OSError, ValueError, RuntimeError, jax.errors.JaxRuntimeError) as error:
            raise CheckpointError(
                f"cannot write a checkpoint: {_reason(error)}",
                file=self.folder,
                remedy="earlier checkpoints are kept; make room or name another folder with -o, then --resume",
            ) from error


def load_params(checkpoint: Path, like: Any) -> Any:
    """The parameters alone of a checkpoint, to start another run from.

    Args:
        checkpoint: the folder of one step, ``<run>/checkpoints/<step>``.
        like: ShapeDtypeStructs with shardings; the parameters are converted to their dtype.

    Raises:
        UnreadableError: there is no such checkpoint, it is damaged, or of another model.
    """
    folder = checkpoint.resolve() / "params"
    if not folder.is_dir():
        raise UnreadableError(
            "is no checkpoint", file=checkpoint, remedy="name the folder of a step, <run>/checkpoints/<step>"
        )
    with _reading(checkpoint), ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder, like)


def _training(state: TrainState) -> dict[str, Any]:
    """What of the state only this run has a use for."""
    return {"step": state.step, "opt_state": state.opt_state}


@contextlib.contextmanager
def _reading(folder: Path) -> Iterator[None]:
    try:
        with _quiet():
            yield
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise UnreadableError(
            f"is no checkpoint of this configuration, or is damaged: {_reason(error)}",
            file=folder,
            remedy="use the recipe and the overrides that it was made with",
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Orbax's threads print what they raise, and it is raised here as well: an error should show once."""
    hook, level = threading.excepthook, logging.getLogger("absl").level
    threading.excepthook = lambda _: None
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        threading.excepthook = hook
        logging.getLogger("absl").setLevel(level)


def _reason(error: BaseException) -> str:
    """One line: what the system says, where the error says that, else its first line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).strip() or type(error).__name__
    # tensorstore: "…: Failed to write 3478722 bytes to file 15: No space left on device [os_error_code='28']"
    if system := re.search(r"([^:\n]+?) \[(?:os_error_code|source|errno)", text):
        return system[1].strip()
    return text.splitlines()[0][:300]
