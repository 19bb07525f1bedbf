"""The settings of docs/clients.md, as an operator copies them from there: what a test runs is what is told.

A block that a test runs has a name in the line that opens it: three backticks, `sh name=exim`.
"""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
PORT = "2525"
"""The relay's, on the page."""

_NAMED = re.compile(r"^```\w+ name=(?P<name>[\w-]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def names() -> list[str]:
    return [found["name"] for found in _NAMED.finditer(PAGE.read_text())]


def snippet(name: str, *, port: int | None = None) -> str:
    """Return the one block of this name, for a relay on another port; it names one, unless `port` is None."""
    (text,) = [found["text"] for found in _NAMED.finditer(PAGE.read_text()) if found["name"] == name]
    assert (PORT in text) == (port is not None), f"{name} and port {PORT}"
    return text.replace(PORT, str(port))
