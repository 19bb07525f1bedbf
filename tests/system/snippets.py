"""Reads the settings of docs/clients.md, so that tests run the very text that operators copy.

A block that a test runs has a name in its opening line: three backticks, `sh name=exim`.
"""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
PORT = "2525"
"""The relay's port on the page."""

_NAMED = re.compile(r"^```\w+ name=(?P<name>[\w-]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def names() -> list[str]:
    return [found["name"] for found in _NAMED.finditer(PAGE.read_text())]


def snippet(name: str, *, port: int | None = None) -> str:
    """Return the block of this name, with `PORT` replaced; if `port` is None it must not contain `PORT`."""
    (text,) = [found["text"] for found in _NAMED.finditer(PAGE.read_text()) if found["name"] == name]
    assert (PORT in text) == (port is not None), f"{name} and port {PORT}"
    return text.replace(PORT, str(port))
