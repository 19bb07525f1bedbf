"""Shortens a failing script: it leaves out events while the same promise stays broken."""

from tests.simulation.oracle import Broken
from tests.simulation.script import Script
from tests.simulation.story import Story


def broken_by(script: Script) -> Broken | None:
    try:
        Story(script).run()
    except Broken as broken:
        return broken
    return None


def shortened(script: Script, promise: str, most_runs: int = 200) -> Script:
    """Return the shortest script found that breaks the same promise, at worst the given one."""
    size = max(1, len(script.events) // 2)
    runs = 0
    while runs < most_runs:
        for start in range(0, len(script.events), size):
            shorter = script.without(range(start, start + size))
            runs += 1
            broken = broken_by(shorter)
            if broken is not None and broken.promise == promise:
                script = shorter
                break
            if runs >= most_runs:
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
    return script
