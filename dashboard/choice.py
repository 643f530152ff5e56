"""What is compared: two sides, how to read them, and a ladder of runs where there is one."""

from __future__ import annotations

from dataclasses import dataclass, field

from profiler.api import Options


@dataclass(frozen=True, slots=True)
class Choice:
    """PATH arguments as the user sees them (below the folders of the app), and how each side is read.

    ``ladder`` holds the runs of a ladder in their order, all of them; empty where two sides are compared.
    """

    base: str
    opt: str
    base_options: Options = field(default_factory=Options)
    opt_options: Options = field(default_factory=Options)
    ladder: tuple[str, ...] = ()

    @property
    def alone(self) -> bool:
        """Whether one recording is compared with itself, since there is no other."""
        return self.base == self.opt and self.base_options == self.opt_options
