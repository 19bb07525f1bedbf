"""MAIL and RCPT: which addresses and parameters they take.  tests/fuzz/addresses sends any bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.mail.address import is_valid_address
from relay.smtp.commands import Refused, parse_mail, parse_rcpt

ATEXT = "ABCXYZabcxyz0189!#$%&'*+-/=?^_`{|}~"
LETTERS = "abcXYZ019"


def reverse(argument: bytes) -> str:
    return parse_mail("FROM:" + argument.decode("utf-8", "surrogateescape")).reverse_path


def forward(argument: bytes, *, smtputf8: bool) -> str:
    return parse_rcpt("TO:" + argument.decode("utf-8", "surrogateescape"), smtputf8=smtputf8)[0]


def _addresses() -> st.SearchStrategy[str]:
    label = st.text(f"{LETTERS}_-", min_size=1, max_size=12).filter(lambda text: text == text.strip("-"))
    domain = st.lists(label, min_size=1, max_size=5).map(".".join)
    literal = st.ip_addresses(v=4).map("[{}]".format) | st.ip_addresses(v=6).map("[IPv6:{}]".format)
    printable = [chr(octet) for octet in range(32, 127)]
    quotable = [*(set(printable) - {'"', "\\"}), *(f"\\{each}" for each in printable)]
    quoted = st.lists(st.sampled_from(sorted(quotable)), max_size=20).map("".join).map('"{}"'.format)
    local = st.text(ATEXT + ".", min_size=1, max_size=32) | quoted
    return st.builds("{}@{}".format, local, domain | domain.map("{}.".format) | literal)


@given(_addresses())
def test_an_address_of_the_grammar_is_returned_unchanged(address: str) -> None:
    argument = b"<" + address.encode() + b">"

    assert reverse(argument) == address
    assert forward(argument, smtputf8=False) == address
    assert is_valid_address(address, smtputf8=False)


@pytest.mark.parametrize(
    "inside",
    [
        b"a@=?utf-8?q?evil=2ecom?=", b"a@=?utf-8?q?b=00Tv=40x?=", b"a\rb@c", b'"a\x0bb"@c', b"a\x00@b",
        b"a@b\x00", b"a\n@b", b'"\r\n"@b', b'"\\\r"@b', b"a\t@b", b"\x7f@b", b'"\x7f"@b',
        "\x85@b".encode(), b"@r1@r2:a@b", b"@r:@b", b"@r,a@b", b"(c)a@b(d)", b"a@b(d)", b"a b@c", b"a",
        b"@b", b"a@", b"root", b"a@b@c", b"a@b,c@d", b"a@b>,<c@d", b"<a@b>", b"a@.b", b"a@b..",
        b"a@b..c", b"a@-b", b"a@b-", b"a@b-.c", b"a@b c", b'"a@b', b'a"b@c', b'"a"b@c', b'"a"."b"@c',
        b'"a"b"@c', b'"a\\"@c', b"a@[1.2.3]", b"a@[1.2.3.256]", b"a@[01.2.3.4]", b"a@[::1]",
        b"a@[IPv6:1.2.3.4]", b"a@[IPv6:::1%eth0]", b"a@[IPv6:]", b"a@[x400:foo]", b"a@[]", b"a@[1.2.3.4",
        b"a@[1.2.3.4].com", b"\xff@b", b"\xc0\x80@b", b"\xed\xa0\x80@b", b"a@\xff", b"l" * 985 + b"@b",
        b"a@" + b".".join([b"d" * 63] * 16), b"a@" + b"l" * 64 + b".test",
    ],
)  # fmt: skip
def test_a_hostile_or_malformed_address_is_refused(inside: bytes) -> None:
    with pytest.raises(Refused, match=r"^501 "):
        reverse(b"<" + inside + b"> SMTPUTF8")
    with pytest.raises(Refused, match=r"^501 "):
        forward(b"<" + inside + b">", smtputf8=True)
    assert not is_valid_address(inside.decode("utf-8", "surrogateescape"), smtputf8=True)


@pytest.mark.parametrize(
    "inside",
    [
        *(b"a@b", b"=?utf-8?q?a=0d=0aX?=@b", b"-oQ/tmp@b", b"|cat@b", b"a@xn--bcher-kva.example", b"a@1"),
        *(b'""@b', b'" "@b', b'"@>\\""@b', b"a@[127.0.0.1]", b"a@[ipv6:::1]", b"a@[IPv6:::ffff:1.2.3.4]"),
        *(b"l" * 984 + b"@b", b"a@" + b".".join([b"d" * 63] * 15), b".a@b", b"a.@b", b"a..b@c", b"a@b."),
        *(b"a@b_c", b"a@_dmarc.b"),
    ],
)
def test_unusual_addresses_of_real_mail_are_accepted_undecoded(inside: bytes) -> None:
    assert reverse(b"<" + inside + b">").encode() == inside


@pytest.mark.parametrize(
    ("argument", "address", "is_recipient"),
    [
        *((b"J\xf6rg Ann <a@b>", "a@b", True), (b'"A, <x@y> \\" B"<a@b>', "a@b", True)),
        *((b"<@r1,@r2.test:a@b>", "a@b", True), (b'<@r:"a:b"@c>', '"a:b"@c', True)),
        *((b" a@b", "a@b", True), (b'"a b"@c', '"a b"@c', True)),
        *((b"Mailer <>", "", False), (b"<>", "", False)),
    ],
)
def test_text_around_an_address_is_dropped_and_only_a_sender_may_be_empty(
    argument: bytes, address: str, *, is_recipient: bool
) -> None:
    assert reverse(argument + b" BODY=8BITMIME SIZE=1") == address
    assert is_valid_address(address, smtputf8=False) is is_recipient
    if is_recipient:
        assert forward(argument, smtputf8=False) == address
    else:
        with pytest.raises(Refused, match=r"^501 5\.1\.3 "):
            forward(argument, smtputf8=False)


def test_only_postmaster_as_a_recipient_needs_no_domain() -> None:
    assert forward(b"<PostMaster>", smtputf8=False) == "PostMaster"
    assert is_valid_address("PostMaster", smtputf8=False)
    with pytest.raises(Refused, match=r"^501 5\.1\.7 "):
        reverse(b"<PostMaster>")


@pytest.mark.parametrize("address", ["é@b", "a@é.example", '"é"@b', "\xa0\ud7ff@\ue000\U0010ffff"])
def test_utf8_is_accepted_only_with_smtputf8(address: str) -> None:
    argument = f"<{address}>".encode()

    assert reverse(argument + b" SMTPUTF8") == address
    assert forward(argument, smtputf8=True) == address
    with pytest.raises(Refused, match=r"^553 5\.6\.7 "):
        reverse(argument)
    with pytest.raises(Refused, match=r"^553 5\.6\.7 "):
        forward(argument, smtputf8=False)
    with pytest.raises(Refused, match=r"^553 5\.6\.7 "):
        forward(f"<a@b> ORCPT=utf-8;{address}".encode(), smtputf8=False)
    assert not is_valid_address(address, smtputf8=False)


@pytest.mark.parametrize(
    "rest",
    [b"x", b"SIZE=1", b" SIZE=1  size=2", b" SIZE=", b" =1", b" -X=1", b" A=b=c", b" A_B", b"\tSIZE=1",
     b" SIZE=1\t", b" SIZE=\x00", b" SIZE=\xc3", b" >"],
)  # fmt: skip
def test_malformed_parameters_are_refused(rest: bytes) -> None:
    for path in (b"<a@b>", b"<>"):
        with pytest.raises(Refused, match=r"^501 5\.5\.4 "):
            reverse(path + rest)
