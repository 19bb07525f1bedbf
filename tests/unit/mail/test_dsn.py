"""The DSN parameters of RFC 3461 and RFC 6533.  tests/fuzz/addresses tests round trips."""

from collections.abc import Callable

import pytest

from relay.mail import dsn
from relay.mail.address import Malformed


@pytest.mark.parametrize(
    ("parse", "value"),
    [
        *((dsn.parse_envid, value) for value in (
            "", "a b", "a=b", "+2b", "+", "+2", "+G0", "é", "a+0D+0Ab", "+00", "+7F", "+E9", "a\n", "a\x00",
            "x" * 98 + "+2B")),
        *((dsn.parse_notify, value) for value in (
            "", ",", "NEVER,FAILURE", "FAILURE,", "FAILURE,,DELAY", "NEVER,NEVER", "ALWAYS", " SUCCESS",
            "NONE")),
        *((dsn.parse_ret, value) for value in ("", "HEADERS", "FULL,HDRS")),
        *((dsn.parse_orcpt, value) for value in (
            "", ";", "rfc822", "rfc822;", ";a@b", "rfc 822;a@b", "rfc822;a b", "rfc822;a=b", "rfc822;é@b",
            "rfc822;a+0Ab", "(x);a", "utf-8;", "utf-8;a+b", "utf-8;a\\b", r"utf-8;\x{e9}", "utf-8;\u0085",
            "utf-8;\ud800", "utf-8;a b", "x" * 41 + ";a")),
    ],
)  # fmt: skip
def test_malformed_dsn_parameters_are_refused(parse: Callable[[str], object], value: str) -> None:
    with pytest.raises(Malformed):
        parse(value)


@pytest.mark.parametrize(
    ("value", "original"),
    [
        ("RFC822;Bob+2Bx+3Dy@example.net", ("RFC822", "Bob+x=y@example.net")),
        ("x400;/C+3D+20/ADMD+3Dx", ("x400", "/C= /ADMD=x")),
        (r"utf-8;\x{E9}t\x{E9}@example.net", ("utf-8", r"\x{E9}t\x{E9}@example.net")),
        ("rfc822;gr+C3+BC+C3+9Fe+2Bx@example.net", ("utf-8", r"gr\x{FC}\x{DF}e\x{2B}x@example.net")),
        ("UTF-8;\U0001f4e8@b", ("UTF-8", r"\x{1F4E8}@b")),
    ],
)
def test_an_original_recipient_is_written_in_ascii(value: str, original: tuple[str, str]) -> None:
    orcpt = dsn.parse_orcpt(value)

    assert orcpt == value
    assert dsn.original_recipient(orcpt) == original
    ascii_form = dsn.utf8_xtext(orcpt)
    assert ascii_form.isascii()
    assert dsn.parse_orcpt(ascii_form) == ascii_form
    assert dsn.original_recipient(ascii_form) == original
