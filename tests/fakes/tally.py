"""Counting crash states, each different one once."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """What was judged."""

    states: set[int] = field(default_factory=set)
    second: set[int] = field(default_factory=set)
    """Those of them that a second crash left."""
    offered: int = 0
    """Images, the same ones too."""
    runs: int = 0

    def __str__(self) -> str:
        return (
            f"{len(self.states)} crash states, {len(self.second)} of them double crashes, "
            f"of {self.offered} images in {self.runs} runs"
        )
