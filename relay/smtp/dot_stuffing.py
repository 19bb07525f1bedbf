"""Content on the wire, dot-stuffed and ended, both ways (RFC 5321, 4.5.2).  Pure.

Guarantees, out: the octets are the same however content is cut into chunks.  Only the stuffed dots and the
final dot are added.  CRLF.CRLF stands at the very end and nowhere else.  The sequences that lenient servers
take for it (LF.LF, CR.CR and their mixtures: SMTP smuggling) stand nowhere.
Guarantees, in: content ends at CRLF.CRLF and nowhere else (RFC 5321, 4.1.1.4).  A dot is removed only after a
true CRLF, however the network cut the octets.
Assumes, out: content of the spool has only CRLF line ends, and ends in one.  Other content is refused here
before its end is sent: a repair would break signatures, and without repair it could forge a message.
"""

_END = b"\r\n.\r\n"
_LINE_END_BYTES = 2
# The ends of a chunk that the next chunk could complete to the end, or to a stuffed dot.
_HELD_BACK = (b"\r\n.\r", b"\r\n.", b"\r\n", b"\r")


class UnsendableContent(Exception):  # noqa: N818 - it is what the spool held, and reads as such
    """The content is not made of lines that end in CRLF: a fault of the spool, not of the upstream."""


def has_only_crlf(text: bytes) -> bool:
    """Return whether every CR and LF of a text is part of a CRLF.

    `bytes.splitlines` ends lines at CR, LF and CRLF: one octet or two.  If all ends together have two octets
    for each end, each is a CRLF.  For usual text this takes half the time of counting CR, LF and CRLF.
    """
    lines = text.splitlines()
    ends = len(lines) if text.endswith((b"\n", b"\r")) else max(0, len(lines) - 1)
    return len(text) - len(b"".join(lines)) == _LINE_END_BYTES * ends


class DotStuffing:
    def __init__(self) -> None:
        self._last = b"\n"  # the last octet; content begins at the beginning of a line

    def add(self, chunk: bytes) -> bytes:
        """Return the next chunk as it is to be sent.  Raises UnsendableContent."""
        if not chunk:
            return b""
        before, self._last = self._last, chunk[-1:]
        whole = b"\r" + chunk if before == b"\r" else chunk
        if not has_only_crlf(whole.removesuffix(b"\r")):
            raise UnsendableContent("a CR or an LF in the content is not part of a CRLF")
        # Each LF is part of a CRLF here, so a dot behind it begins a line.  The search for CRLF is quicker;
        # the first LF of a chunk may belong to a CRLF that was cut in two.
        has_dots = b"\r\n." in chunk or chunk.startswith(b"\n.")
        stuffed = chunk.replace(b"\n.", b"\n..") if has_dots else chunk
        return b"." + stuffed if before == b"\n" and chunk.startswith(b".") else stuffed

    def finish(self) -> bytes:
        """Return the final dot, with its CRLF.  Raises UnsendableContent."""
        if self._last != b"\n":
            raise UnsendableContent("the content does not end in CRLF")
        return b".\r\n"


class DotUnstuffing:
    """One content on its way in: feed it what arrives after 354.  It holds back at most four octets."""

    def __init__(self) -> None:
        self._held = b"\r\n"  # the CRLF that ended the DATA command begins the end of empty content
        self._skip_bytes = 2  # that CRLF is not content
        self.is_ended = False
        self.rest = b""
        """What came after the end: commands, never content."""

    def feed(self, received: bytes) -> bytes:
        """Return the content that is certain now, without splitting a CRLF.  Feed no more once `is_ended`."""
        text = self._held + received
        end = text.find(_END)
        if end >= 0:
            self.is_ended = True
            self.rest = text[end + len(_END) :]
            block, self._held = text[: end + 2], b""
        else:
            self._held = next((tail for tail in _HELD_BACK if text.endswith(tail)), b"")
            block = text[: len(text) - len(self._held)]
        if not block:
            return b""
        # The first block begins with the CRLF that is not content.
        block = block.replace(b"\r\n.", b"\r\n")[self._skip_bytes :]
        self._skip_bytes = 0
        return block
