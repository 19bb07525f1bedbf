"""Which calls of a `ModelDisk` fail, and how."""

from dataclasses import dataclass

READS = frozenset({"open", "read", "names"})
"""Calls that change nothing: no step of a run, and failing only where a fault names them."""


@dataclass(slots=True)
class Fault:
    """A call that is to fail: the `nth` state-changing one from when it was ordered, from 1."""

    nth: int
    error: int
    forever: bool = False
    is_short: bool = False
    """Half of a write is written before it fails."""
    is_lying: bool = False
    """A write succeeds, and is lost before the next sync of its file, which says so."""
    kinds: frozenset[str] | None = None
    """Only calls of these kinds count."""
    path: str = ""
    """Only calls about a path that contains this count."""
    drops_pages: bool = False
    """After a failed sync readers see what the disk has, and not what was written."""
