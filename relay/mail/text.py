"""Makes foreign text safe for a log line, a header, a reply or a terminal.  Pure."""

import re

MAX_TEXT_CHARACTERS = 2000
_LINE_END = re.compile(r"[\t\r\n]")
_NOT_PRINTABLE = re.compile(r"[^ -~]")


def clean(text: bytes | str) -> str:
    """Return printable ASCII on one line, cut to MAX_TEXT_CHARACTERS; tabs and line ends become spaces.

    Everything else becomes `?`: nothing from outside can break a log line, a header or a terminal.
    """
    decoded = text if isinstance(text, str) else text.decode("utf-8", "replace")
    return _NOT_PRINTABLE.sub("?", _LINE_END.sub(" ", decoded)).strip()[:MAX_TEXT_CHARACTERS]
