r"""Content as it travels: dot-stuffed and ended (RFC 5321, 4.5.2).  Pure.

Guarantees: however content is cut into chunks, the octets are the same; nothing but the
stuffed dots and the final dot is added, nothing is changed or left out; the sequence
CRLF.CRLF stands at the very end and nowhere else, and neither do the sequences that
lenient servers take for it (LF.LF, CR.CR and their mixtures: SMTP smuggling).
Assumes: what the spool holds has CRLF line ends only and ends in one; the listener saw
to it.  Content that has not is refused here, before its end was sent: repairing it would
break signatures, sending it as it is would let a message forge another.
"""


class UnsendableContent(Exception):  # noqa: N818 - it is what the spool held, and reads as such
    """The content is not made of lines that end in CRLF: a fault of the spool, not of the upstream."""


class DotStuffing:
    """One content on its way out, chunk by chunk."""

    def __init__(self) -> None:
        self._last = b"\n"  # the last octet; content begins at the beginning of a line

    def add(self, chunk: bytes) -> bytes:
        """Return the next chunk as it is to be sent.  Raises UnsendableContent."""
        if not chunk:
            return b""
        follows_cr, follows_line = self._last == b"\r", self._last == b"\n"
        self._check_line_ends(chunk, follows_cr=follows_cr)
        self._last = chunk[-1:]
        # Every LF is that of a CRLF by now, so a dot behind one begins a line.
        stuffed = chunk.replace(b"\n.", b"\n..") if b"\n." in chunk else chunk
        return b"." + stuffed if follows_line and chunk.startswith(b".") else stuffed

    def finish(self) -> bytes:
        """Return the final dot, with its CRLF.  Raises UnsendableContent."""
        if self._last != b"\n":
            raise UnsendableContent("the content does not end in CRLF")
        return b".\r\n"

    @staticmethod
    def _check_line_ends(chunk: bytes, *, follows_cr: bool) -> None:
        pairs = chunk.count(b"\r\n")
        if follows_cr and not chunk.startswith(b"\n"):
            raise UnsendableContent("a CR without LF in the content")
        if chunk.count(b"\n") != pairs + follows_cr:
            raise UnsendableContent("an LF without CR in the content")
        if chunk.count(b"\r") != pairs + chunk.endswith(b"\r"):
            raise UnsendableContent("a CR without LF in the content")
