"""Command lines: what is written is read as it was meant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.mail.envelope import Shape
from relay.smtp.commands import (
    MailCommand,
    RcptCommand,
    Refused,
    mail_line,
    parse_mail,
    parse_rcpt,
    rcpt_line,
    split_command,
)


@given(
    address=st.sampled_from(["", "a@b", '"a b"@[127.0.0.1]', "é@ü.example"]),
    size_bytes=st.integers(0, 10**18),
    has_size=st.booleans(),
    eight_bit=st.booleans(),
)
def test_mail_is_read_as_it_was_written(
    address: str, size_bytes: int, has_size: bool, eight_bit: bool
) -> None:
    smtputf8 = not address.isascii()
    line = mail_line(address, Shape(size_bytes, eight_bit, smtputf8), has_size=has_size)
    verb, argument = split_command(line)

    assert verb == "MAIL"
    assert (b" BODY=8BITMIME" in line) == eight_bit
    assert parse_mail(argument) == MailCommand(address, size_bytes if has_size else 0, smtputf8)


@pytest.mark.parametrize("address", ["a@b", '"a>b"@c', "é@ü.example"])
def test_rcpt_is_read_as_it_was_written(address: str) -> None:
    verb, argument = split_command(rcpt_line(address))

    assert verb == "RCPT"
    assert parse_rcpt(argument, smtputf8=True) == RcptCommand(address)


@pytest.mark.parametrize(
    ("argument", "code"),
    [
        *(("FROM:<a>", "501 5.1.7"), ("FROM:<a@b>x", "501 5.5.4"), ("FROM:<é@b>", "553 5.6.7")),
        *(("FROM:<a@b> BODY", "501 5.5.4"), ("FROM:<a@b> BODY=9BIT", "501 5.5.4")),
        *(("FROM:<a@b> SIZE=x", "501 5.5.4"), ("FROM:<a@b> SMTPUTF8=1", "501 5.5.4")),
        *(("FROM:<a@b> RET", "501 5.5.4"), ("FROM:<a@b> ENVID=+", "501 5.5.4")),
        ("FROM:<a@b> ENVID", "501 5.5.4"),
        *(("FROM:<a@b> X", "555 5.5.4"), ("TO:<a@b>", "501 5.5.4"), (None, "501 5.5.4")),
    ],
)
def test_a_mail_that_is_none_is_refused(argument: str | None, code: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_mail(argument)

    assert refused.value.reply.startswith(code)


def test_parameters_that_mean_nothing_to_us_are_taken() -> None:
    assert parse_mail("FROM:<a@b> BODY=8bitmime AUTH=a+2B") == MailCommand("a@b", 0, smtputf8=False)
