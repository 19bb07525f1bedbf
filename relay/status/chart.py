"""Shapes of small charts, as path data of SVG.  Pure.

A chart is WIDTH by HEIGHT units with the origin at its top left corner; the page stretches it.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from relay.status.samples import GAP

WIDTH = 240
HEIGHT = 48


class Curve(NamedTuple):
    line: str
    area: str
    """The line, closed along the bottom."""


def steps(values: Sequence[int], top: int) -> Curve:
    """Draw each value as a step of equal width, `top` as the full height, and nothing for a `GAP`."""
    width = WIDTH / len(values)
    line, area = "", ""
    for is_known, run in groupby(range(len(values)), lambda index: values[index] != GAP):
        if is_known:
            columns = list(run)
            heights = [_height(values[index], top) for index in columns]
            ends = [(index + 1) * width for index in columns]
            corners = "".join(f"V{_short(y)}H{_short(x)}" for x, y in zip(ends, heights, strict=True))
            begin = _short(columns[0] * width)
            line += f"M{begin} {_short(heights[0])}{corners}"
            area += f"M{begin} {HEIGHT}{corners}V{HEIGHT}Z"
    return Curve(line, area)


def highest(values: Sequence[int], group: int) -> list[int]:
    """Return the highest of each so many values."""
    return [max(values[index : index + group]) for index in range(0, len(values), group)]


def _height(value: int, top: int) -> float:
    return HEIGHT * (1 - min(1.0, value / max(1, top)))


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
