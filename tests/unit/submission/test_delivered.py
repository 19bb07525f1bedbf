"""The envelope of a message in a maildir."""

from dataclasses import replace

import pytest

from relay.submission.composing import EnvelopeSource, NotAnAddress, delivered
from tests.unit.submission.test_composing import AUTHOR

ON_TOP = b"Return-Path: <a@b.test>\r\nX-Original-To: x@y.test\r\nDelivered-To: c@d.test\r\n"
HEAD = b"Delivered-To: e@f.test\r\nSubject: x\r\nReturn-Path: <g@h.test>\r\n\r\n"


@pytest.mark.parametrize(
    ("line", "field"), [(b"", b""), (b"From x Mon\r\n", b"X-Mailbox-Line: From x Mon\r\n")]
)
def test_only_the_lines_on_top_are_the_envelope(line: bytes, field: bytes) -> None:
    found = delivered(line + ON_TOP + HEAD, AUTHOR, EnvelopeSource())

    assert (found.reverse_path, found.recipients) == ("a@b.test", ("c@d.test",))
    assert found.content == field + b"X-Original-To: x@y.test\r\n" + HEAD


@pytest.mark.parametrize("head", [b"", b"no field\r\n\r\n", b"Subject: x\r\nno field\r\n", b"\r\n", HEAD])
def test_what_came_from_a_mail_server_stays_as_it_is(head: bytes) -> None:
    on_top = ON_TOP.replace(b"X-Original-To: x@y.test\r\n", b"")

    assert delivered(on_top + head, AUTHOR, EnvelopeSource()).content == head


def test_a_null_sender_stays_null() -> None:
    assert delivered(ON_TOP.replace(b"a@b.test", b""), AUTHOR, EnvelopeSource()).reverse_path == ""
    assert delivered(ON_TOP, replace(AUTHOR, sender="<>"), EnvelopeSource()).reverse_path == ""


@pytest.mark.parametrize("prefix", ["d", "c@d.test", "C"])
def test_a_prefix_that_leaves_no_address_is_told(prefix: str) -> None:
    with pytest.raises(NotAnAddress):
        delivered(ON_TOP, AUTHOR, EnvelopeSource(prefix))
