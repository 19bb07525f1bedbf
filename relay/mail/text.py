"""Foreign text as it may stand in a log line, a header, a reply or on a terminal.  Pure."""

import re

MAX_TEXT_CHARACTERS = 2000

_PRINTABLE = re.compile(r"[ -~]*\Z")


def clean(text: bytes | str) -> str:
    """Return printable ASCII on one line, cut to MAX_TEXT_CHARACTERS; tabs and line ends become spaces.

    Everything else becomes `?`: nothing from outside can break a log line, a header or a terminal.
    """
    decoded = text if isinstance(text, str) else text.decode("utf-8", "replace")
    if _PRINTABLE.match(decoded):  # nearly always, and ten times as fast
        return decoded.strip()[:MAX_TEXT_CHARACTERS]
    folded = "".join(" " if c in "\t\r\n" else c if " " <= c <= "~" else "?" for c in decoded)
    return folded.strip()[:MAX_TEXT_CHARACTERS]
