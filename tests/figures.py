"""Figures that tests are run for: counted while they run, printed once at the end."""

from collections import Counter

FIGURES: Counter[str] = Counter()
"""How many of what, e.g. `simulated faults of the spool`."""
