"""What the decoder reads of the header while content arrives.  tests/fuzz/content tests the rest."""

import pytest

from relay.listener.content import ContentDecoder
from relay.mail.header import message_id_of


def test_only_the_first_part_of_an_endless_header_is_examined() -> None:
    for behind in (b"Message-ID: <1@x>\r\n", b"To: \xff\r\n"):
        decoder = ContentDecoder(1_000_000, 5, normalise=False)
        for _ in range(20):
            decoder.feed(b"To: x\r\n" * 1000)
        decoder.feed(behind + b"\r\n.\r\n")
        assert (decoder.message_id, decoder.has_ascii_header) == (None, False)


@pytest.mark.parametrize(
    ("content", "message_id"),
    [
        (b"To: x\r\nmessage-id:\r\n <1@x>\r\n\t(a)\r\nSubject: y\r\n\r\n", "<1@x> (a)"),
        (b"Message-Id: <\xff@x>\r\nMessage-Id: <2@x>\r\n\r\n", "<\ufffd@x>"),
        (b"Message-ID: " + b"y" * 2000 + b"\r\n\r\n", "y" * 998),
        *((content, None) for content in (b"Message-ID:  \r\n\r\n", b"X-Message-ID: <1@x>\r\n\r\n", b"")),
        (b"To: x\r\n\r\nMessage-ID: <1@x>\r\n", None),
    ],
)
def test_the_message_id_is_the_first_of_the_header_unfolded(content: bytes, message_id: str | None) -> None:
    assert message_id_of(content) == message_id
