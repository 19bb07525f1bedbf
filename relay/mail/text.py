"""Foreign text as it may stand in a log line, a header, a reply or on a terminal.  Pure."""

import re

MAX_TEXT_CHARACTERS = 2000

_PRINTABLE = re.compile(r"[ -~]*\Z")


def clean(text: bytes | str) -> str:
    """Return foreign text as printable ASCII on one line, cut to MAX_TEXT_CHARACTERS.

    Everything that is not printable ASCII becomes `?`, tabs and line ends become
    spaces: nothing from outside can break a log line, a header or a terminal.
    """
    decoded = text if isinstance(text, str) else text.decode("utf-8", "replace")
    if _PRINTABLE.match(decoded):  # nearly always, and ten times as fast
        return decoded.strip()[:MAX_TEXT_CHARACTERS]
    folded = "".join(" " if c in "\t\r\n" else c if " " <= c <= "~" else "?" for c in decoded)
    return folded.strip()[:MAX_TEXT_CHARACTERS]
