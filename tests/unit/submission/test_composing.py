"""Text that a program gives to sendmail(1) or puts into a maildir becomes a message or is refused."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.mail.dsn import Ret
from relay.submission.command_line import Mode, SendmailCall, WrongUsage, parse_call
from relay.submission.composing import (
    Author,
    EnvelopeSource,
    NotAnAddress,
    Submission,
    addresses_in,
    from_maildir,
    from_program,
)

HOST = "host.test"
AUTHOR = Author(HOST, "me", None, None, datetime(2026, 11, 23, tzinfo=UTC), "<1@host.test>")
ADDED = b"From: me@host.test\r\nDate: Mon, 23 Nov 2026 00:00:00 +0000\r\nMessage-ID: <1@host.test>\r\n"
WHOLE = b"From: a@b.test\r\nDate: x\r\nMessage-ID: <y>\r\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *((text, [text]) for text in ("a@b.test", "a@[IPv6:::1]", '"a b"@c.test', "ö@b.test")),
        *(("root", ["root@host.test"]), ("A B <a@b.test>", ["a@b.test"])),
        ("a@b.test, c@d.test,", ["a@b.test", "c@d.test"]),
        ('"B, A <x@y.test>" <a@b.test>', ["a@b.test"]),
        ("a@b.test (A, B (c) \\) <d@e.test>)", ["a@b.test"]),
        ("friends: a@b.test, C <c@d.test>;, e@f.test", ["a@b.test", "c@d.test", "e@f.test"]),
        *(("undisclosed-recipients:;", []), ("a@b.test, a@b.test", ["a@b.test"]), ("", [])),
        *((text, None) for text in (
            "a b@c.test", "<a@b.test> <c@d.test>", "<a@b.test> c@d.test", "<>", "A <a@b.test", "(a@b.test",
            "a@b@c", "a\ufffd@b.test")),
    ],
)  # fmt: skip
def test_addresses_are_found_in_every_usual_form_or_refused(text: str, found: list[str] | None) -> None:
    if found is None:
        with pytest.raises(NotAnAddress):
            addresses_in(text, HOST)
    else:
        assert addresses_in(text, HOST) == found


IGNORED = "-m -n -v -G -I -U -Ac -B8BITMIME -h 3 -L tag -X log -oem -O DeliveryMode=b -pSMTP -e m -C file"
SENT_BY_A = SendmailCall(sender="a@b.test")


@pytest.mark.parametrize(
    ("words", "call"),
    [
        *((words, SendmailCall(dot_ends=False)) for words in ("-i", "-oi", "-o i", "-oem -oi")),
        *((words, SENT_BY_A) for words in ("-fa@b.test", "-f a@b.test", "-ra@b.test")),
        ("-tfa@b.test", SendmailCall(sender="a@b.test", takes_header=True)),
        ("a@b.test -i c@d.test", SendmailCall(recipients=["a@b.test", "c@d.test"], dot_ends=False)),
        ("-i -- -f -t", SendmailCall(recipients=["-f", "-t"], dot_ends=False)),
        (f"{IGNORED} a@b.test", SendmailCall(recipients=["a@b.test"])),
        *(("-bm", SendmailCall()), ("-bp", SendmailCall(mode=Mode.LIST))),
        *(("-bs", SendmailCall(mode=Mode.SMTP)), ("-bi", SendmailCall(mode=Mode.NEW_ALIASES))),
        *((words, SendmailCall(mode=Mode.FLUSH)) for words in ("-q", "-q15m", "-q -v")),
        ("--policy p.yaml --spool=s", SendmailCall(policy=Path("p.yaml"), spool=Path("s"))),
        *(("-Nnever", SendmailCall(notify="NEVER")), ("-f ", SendmailCall(sender=""))),
        ("-N success,DELAY", SendmailCall(notify="SUCCESS,DELAY")),
        ("-Rhdrs -V batch+1", SendmailCall(ret=Ret.HDRS, envid="batch+2B1")),
    ],
)
def test_options_are_those_of_sendmail(words: str, call: SendmailCall) -> None:
    assert parse_call(words.split(" ")) == call


@pytest.mark.parametrize(
    "words",
    [
        *(["-bd"], ["-bv"], ["-z"], ["-f"], ["--policy"], ["--verbose"], ["-N", "always"]),
        *(["-N", "never,delay"], ["-N", ""], ["-R", "all"], ["-V", ""], ["-V", "é"], ["-V", "a\nb"]),
        ["-V", "x" * 101],
    ],
)
def test_an_unknown_or_malformed_option_is_wrong_usage(words: list[str]) -> None:
    with pytest.raises(WrongUsage):
        parse_call([*words, "a@b.test"] if len(words) > 1 else words)


def compose(text: bytes, *argv: str, author: Author = AUTHOR, takes_header: bool = False) -> Submission:
    return from_program(text, author, argv, takes_header=takes_header)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (b"Subject: x\n\nhello\n", ADDED + b"Subject: x\r\n\r\nhello\r\n"),
        (WHOLE + b"X-Odd :  a\r\n\tb\r\n\r\n.\xff\r\n", WHOLE + b"X-Odd :  a\r\n\tb\r\n\r\n.\xff\r\n"),
        (WHOLE + b"hello: \nyou", WHOLE + b"hello: \r\n\r\nyou\r\n"),
        *((line + b"\n" + WHOLE, b"X-Mailbox-Line: " + line + b"\r\n" + WHOLE + b"\r\n") for line in (
            b"From me Mon Nov 23", b">From me Mon Nov 23")),
    ],
)  # fmt: skip
def test_missing_header_fields_are_added_and_all_else_stays(text: bytes, content: bytes) -> None:
    assert compose(text, "a@b.test").content == content


def test_bcc_is_removed_and_its_addresses_count_only_with_t() -> None:
    text = WHOLE + b"To: a@b.test\nBcc: c@d.test,\n e@f.test\n\n"
    without, with_header = compose(text, "x@y.test"), compose(text, "x@y.test", takes_header=True)

    assert without.recipients == ("x@y.test",)
    assert with_header.recipients == ("x@y.test", "a@b.test", "c@d.test", "e@f.test")
    assert without.content == with_header.content == WHOLE + b"To: a@b.test\r\n\r\n"


@pytest.mark.parametrize(
    ("sender", "path"), [(None, "me@host.test"), ("", ""), ("<>", ""), ("x", "x@host.test")]
)
def test_the_sender_is_the_user_unless_named(sender: str | None, path: str) -> None:
    found = compose(b"\n", "a@b.test", author=replace(AUTHOR, sender=sender))
    assert found.reverse_path == path
    assert found.content.startswith(f"From: {path or 'me@host.test'}\r\n".encode())


@pytest.mark.parametrize(
    ("text", "sender"), [(b"To: a@b.test, c d@e.test\n\n", None), (b"\n", "a@b.c, c@d.e")]
)
def test_one_malformed_address_refuses_the_message(text: bytes, sender: str | None) -> None:
    with pytest.raises(NotAnAddress):
        compose(text, author=replace(AUTHOR, sender=sender), takes_header=True)


def test_the_callers_user_name_must_be_valid_only_where_it_is_used() -> None:
    author = replace(AUTHOR, user="OFFICE\\me", sender="a@b.test")

    assert compose(b"To: c@d.test\n\n", author=author, takes_header=True).reverse_path == "a@b.test"
    for sender in (None, "<>"):
        # The message is not at fault: the exit code is 78, and a drain stops.
        with pytest.raises(ValueError, match="name a sender") as caught:
            compose(b"\n", "c@d.test", author=replace(author, sender=sender))
        assert not isinstance(caught.value, NotAnAddress)


@given(st.binary(max_size=60))
def test_text_behind_the_header_changes_only_in_its_line_ends(text: bytes) -> None:
    lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    content, expected = compose(WHOLE + b"\r\n" + text, "a@b.test").content, b"\r\n".join(lines)

    assert content in (WHOLE + b"\r\n" + expected, WHOLE + b"\r\n" + expected + b"\r\n")


ON_TOP = b"Return-Path: <a@b.test>\r\nDelivered-To: c@d.test\r\n"
HEAD = b"Delivered-To: e@f.test\r\nSubject: x\r\nReturn-Path: <g@h.test>\r\n\r\n"


@pytest.mark.parametrize("head", [b"", b"no field\r\n\r\n", b"Subject: x\r\nno field\r\n", b"\r\n", HEAD])
def test_a_message_from_a_mail_server_stays_as_it_is(head: bytes) -> None:
    found = from_maildir(ON_TOP + head, AUTHOR, EnvelopeSource())
    assert (found.reverse_path, found.recipients, found.content) == ("a@b.test", ("c@d.test",), head)


def test_a_null_sender_stays_null() -> None:
    assert from_maildir(ON_TOP.replace(b"a@b.test", b""), AUTHOR, EnvelopeSource()).reverse_path == ""
    assert from_maildir(ON_TOP, replace(AUTHOR, sender="<>"), EnvelopeSource()).reverse_path == ""


@pytest.mark.parametrize("prefix", ["d", "c@d.test", "C"])
def test_a_prefix_that_leaves_no_address_is_refused(prefix: str) -> None:
    with pytest.raises(NotAnAddress):
        from_maildir(ON_TOP, AUTHOR, EnvelopeSource(prefix))
