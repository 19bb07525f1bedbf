"""Figures that tests count while they run; conftest prints the sums once at the end."""

from collections import Counter

FIGURES: Counter[str] = Counter()
"""The count of each figure, by its name, e.g. `simulated faults of the spool`."""
