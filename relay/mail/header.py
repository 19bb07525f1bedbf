"""The header section of a message, read leniently (RFC 5322, 2.2): fields, unfolded.  Pure."""

from collections.abc import Iterator


def header_fields(head: bytes) -> Iterator[tuple[str, str]]:
    """Read to an empty line or the end; names in lower case, runs of white space as one space."""
    name, value = "", ""
    for line in head.partition(b"\r\n\r\n")[0].split(b"\r\n"):
        text = line.decode("utf-8", "replace")
        if text[:1] in {" ", "\t"}:
            value += text
            continue
        if name:
            yield name, " ".join(value.split())
        if not text:
            return
        name, _, value = text.partition(":")
        name = name.strip().lower()
    if name:
        yield name, " ".join(value.split())
