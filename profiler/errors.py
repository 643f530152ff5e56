"""The errors a user can meet. Each prints as one line (file, what, remedy) and sets the exit code."""

from __future__ import annotations


class ProfilerError(Exception):
    """Base of every expected failure.

    Args:
        what: what is wrong, a clause without a full stop.
        file: the file or argument it is about, if any.
        remedy: what the user can do, if anything is known to help.
    """

    exit_code = 1

    def __init__(self, what: str, *, file: object | None = None, remedy: str | None = None):
        self.what, self.file, self.remedy = what, file, remedy
        line = f"{file}: {what}" if file is not None else what
        super().__init__(f"{line} ({remedy})" if remedy else line)


class UsageError(ProfilerError):
    """The command line asks for something that does not exist or does not go together."""

    exit_code = 2


class UnreadableError(ProfilerError):
    """The input is missing, is not a profile, or is damaged beyond use."""

    exit_code = 3


class NotComparableError(ProfilerError):
    """The two sides cannot be compared without --force."""

    exit_code = 4


class ThresholdHit(ProfilerError):
    """The pair does not keep a ``--fail-on`` threshold; the answer is written all the same."""

    exit_code = 1
