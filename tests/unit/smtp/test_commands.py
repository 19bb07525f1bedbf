"""Command lines: what is written is read as it was meant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.smtp.commands import (
    MailCommand,
    RcptCommand,
    Refused,
    SmtpVerb,
    has_control,
    is_one_line,
    mail_line,
    parse_mail,
    parse_rcpt,
    rcpt_line,
    split_command,
)


@given(
    address=st.sampled_from(["", "a@b", '"a b"@[127.0.0.1]', "é@ü.example"]),
    size_bytes=st.none() | st.integers(0, 10**18),
    eight_bit=st.booleans(),
)
def test_mail_is_read_as_it_was_written(address: str, size_bytes: int | None, eight_bit: bool) -> None:
    smtputf8 = not address.isascii()
    line = mail_line(address, size_bytes=size_bytes, eight_bit=eight_bit, smtputf8=smtputf8)
    verb, argument = split_command(line)

    assert verb == SmtpVerb.MAIL
    assert parse_mail(argument) == MailCommand(address, size_bytes or 0, smtputf8, eight_bit)


@pytest.mark.parametrize("address", ["a@b", '"a>b"@c', "é@ü.example"])
def test_rcpt_is_read_as_it_was_written(address: str) -> None:
    verb, argument = split_command(rcpt_line(address))

    assert verb == SmtpVerb.RCPT
    assert parse_rcpt(argument, smtputf8=True) == RcptCommand(address)


@given(line=st.binary(max_size=60))
def test_what_holds_no_control_is_one_line(line: bytes) -> None:
    assert is_one_line(line) == (not set(line) & set(b"\r\n\0"))
    assert is_one_line(line) or has_control(line)


@pytest.mark.parametrize(
    ("argument", "code"),
    [
        *(("FROM:<a>", "501 5.1.7"), ("FROM:<a@b>x", "501 5.5.4"), ("FROM:<é@b>", "553 5.6.7")),
        *(("FROM:<a@b> BODY", "501 5.5.4"), ("FROM:<a@b> BODY=9BIT", "501 5.5.4")),
        *(("FROM:<a@b> X", "555 5.5.4"), ("TO:<a@b>", "501 5.5.4"), (None, "501 5.5.4")),
    ],
)
def test_a_mail_that_is_none_is_refused(argument: str | None, code: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_mail(argument)

    assert refused.value.reply.startswith(code)


@pytest.mark.parametrize(("body", "eight_bit"), [("7BIT", False), ("8bitmime", True)])
def test_body_says_whether_octets_have_eight_bits(body: str, eight_bit: bool) -> None:
    assert parse_mail(f"FROM:<a@b> BODY={body} AUTH=a+2B").eight_bit is eight_bit
