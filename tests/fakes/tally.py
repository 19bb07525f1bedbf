"""Counting crash states over all cores, each different one once.

A walk judges states in one process until its time is up.  Processes are fresh
interpreters that hash alike, so that they give the same state the same number, and the
numbers of all walks make one set.
"""

import concurrent.futures
import multiprocessing
import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

Part = tuple[int, int]
"""Which of how many walks: it judges slices `first`, `first + many`, `first + 2 * many`…"""


@dataclass(slots=True)
class Tally:
    """What was judged."""

    states: set[int] = field(default_factory=set)
    second: set[int] = field(default_factory=set)
    """Those of them that a second crash left."""
    offered: int = 0
    """Images, the same ones too."""
    runs: int = 0

    def add(self, other: "Tally") -> None:
        self.states |= other.states
        self.second |= other.second
        self.offered += other.offered
        self.runs += other.runs

    def __str__(self) -> str:
        return (
            f"{len(self.states)} crash states, {len(self.second)} of them double crashes, "
            f"of {self.offered} images in {self.runs} runs"
        )

    def packed(self) -> "Packed":
        states, second = array("q", self.states).tobytes(), array("q", self.second).tobytes()
        return states, second, self.offered, self.runs


Packed = tuple[bytes, bytes, int, int]


def on_all_cores(walk: Callable[[Part], Packed]) -> Tally:
    """Let each core walk its part; raises what a walk raised."""
    cores, tally = len(os.sched_getaffinity(0)), Tally()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONHASHSEED", "0")
        spawn = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(cores, mp_context=spawn) as pool:
            for states, second, offered, runs in pool.map(walk, [(start, cores) for start in range(cores)]):
                tally.add(Tally(set(array("q", states)), set(array("q", second)), offered, runs))
    return tally
