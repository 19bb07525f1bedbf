"""Any bytes as a header, rewritten for another sender: other fields, and all after the header, stay."""

from relay.mail.envelope import Shape
from relay.mail.rewriting import FRONT_BYTES, Rewriting
from tests.fuzz.choices import Choices
from tests.fuzz.work import bounded

TOKENS = [
    *(b"From:", b"FROM :", b"Sender:", b"Reply-To:", b"Received: x\r\n", b"\r\n", b"\r\n ", b"\r\n\r\n"),
    b"From x\r\n",
    *(b"<", b">", b"(", b")", b'"', b"\\", b",", b";", b":", b"@", b"[", b"]", b"ann@h.lan", b"\xc3"),
    b"<@a,@b:c@d.e>",
]  # fmt: skip
OURS = (b"from", b"sender", b"reply-to", b"x-original-from", b"x-original-sender")


def target(raw: bytes) -> None:
    choices = Choices(raw)
    rule = Rewriting("news@example.com" if choices.yes() else "@example.com")
    sender = "" if choices.yes() else "ann@home.lan"
    lines = choices.rest().replace(b"\r\n", b"\n").replace(b"\r", b"").replace(b"\n", b"\r\n")
    content = lines if lines.endswith(b"\r\n") else lines + b"\r\n"
    with bounded(1_000 + 200 * len(content)):
        made = rule.rewritten(sender, content[:FRONT_BYTES])
    whole = made.content(content)

    assert made.reverse_path == ("" if not sender else rule.reverse_path(sender))
    assert made.shape(Shape(len(content), True, True)).size_bytes == len(whole)
    assert whole.endswith(content[made.replaced_bytes :])
    assert whole.count(b"\n") == whole.count(b"\r") == whole.count(b"\r\n")
    assert whole.isascii() or not content.isascii()
    assert _others(whole[: len(made.front)]) == _others(content[: made.replaced_bytes])
    assert rule.rewritten(made.reverse_path, whole[:FRONT_BYTES]).content(whole) == whole


def _others(front: bytes) -> list[bytes]:
    """Return the lines of fields that rewriting does not change."""
    kept, is_ours = [], False
    for line in front.split(b"\r\n")[:-1]:
        if line[:1] not in {b" ", b"\t"}:
            is_ours = line.partition(b":")[0].strip(b" \t").lower() in OURS
        if not is_ours:
            kept.append(line)
    return kept


SEEDS = [
    b"\0\0Received: by here\r\nFrom: Ann <ann@home.lan>\r\nSender: b@h.lan\r\nTo: x@y\r\n\r\nhello\r\n",
    b'\1\0From: "A, B" <a@h.lan> (x (y)), G: c@d.e;\r\n\tz <q@r.s>\r\nReply-To: k\r\n\r\n',
    b"\1\1To: nobody\r\n\r\nFrom: not a field\r\n",
]
