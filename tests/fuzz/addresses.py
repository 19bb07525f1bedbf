"""Any bytes as arguments of MAIL and RCPT give address and DSN parameters as sent, or a refusal in ASCII."""

from relay.mail.address import is_valid_address
from relay.mail.dsn import NO_REQUEST, DsnRequest, RecipientRequest, decode_xtext, original_recipient
from relay.mail.envelope import Shape
from relay.smtp.commands import (
    Refused,
    has_control,
    mail_line,
    parse_mail,
    parse_rcpt,
    rcpt_line,
    split_command,
)
from tests.fuzz.choices import Choices
from tests.fuzz.work import bounded, must_be_shown

PARTS = [
    b"a", b"A.b", b'"a b"', b'"\\""', b"@", b"@", b"example.com", b"[127.0.0.1]", b"[IPv6:::1]", b".", b"-",
    b"<", b">", b" ", b"\\", b'"', b"x" * 64, b"d" * 63 + b".", b"\xc3\xa9", b"\xff", b"=?utf-8?q?a?=",
    b"\r", b"\n", b"\0", b"\t", b"\x7f", b"\xc2\x85", b":", b",", b"(c)", b"SIZE=1", b"SMTPUTF8",
    b"BODY=8BITMIME", b"AUTH=<>", b"RET=FULL", b"RET=HDRS", b"ENVID=a+2Bb", b"ENVID=+0D+0A", b"NOTIFY=NEVER",
    b"NOTIFY=SUCCESS,DELAY", b"NOTIFY=", b"ORCPT=rfc822;a+40b", b"ORCPT=utf-8;\\x{E9}@b",
    b"ORCPT=utf-8;\xc3\xa9@b",
    b"ORCPT=utf-8;\\x{D800}", b"\\x{", b"+2", b";", b"ORCPT=", b"..", b"_", b"@r:", b"@r,@s:", b"Ann <",
    b"  ", b"postmaster",
]  # fmt: skip
TOKENS = PARTS


def target(raw: bytes) -> None:
    choices = Choices(raw)
    if choices.yes():
        inside = b"".join(choices.pick(PARTS) for _ in range(choices.number(12)))
        path = inside if choices.yes() else b"<" + inside + b">"
        parameters = b" ".join(choices.pick(PARTS) for _ in range(1 + choices.number(3)))
        argument = choices.spoiled(path + b" " + parameters, TOKENS)
    else:
        argument = choices.rest()
    for verb in (b"MAIL FROM:", b"RCPT TO:"):
        _check(verb, argument)


def _check(verb: bytes, argument: bytes) -> None:
    name, rest = split_command(verb + argument)
    smtputf8, asked, ret, envid = True, NO_REQUEST, None, ""
    try:
        with bounded(2_000):
            if name == "MAIL":
                mail = parse_mail(rest)
                address, smtputf8, ret, envid = mail.reverse_path, mail.smtputf8, mail.ret, mail.envid
            else:
                address, asked = parse_rcpt(rest, smtputf8=True)
    except Refused as refused:
        must_be_shown(refused)
        return
    octets = address.encode()
    assert octets in argument
    assert not has_control(octets)
    assert b"\t" not in octets
    # The address goes out as it came in, and the next server reads the same.
    assert address == "" or is_valid_address(address, smtputf8=smtputf8)
    _check_dsn(address, asked, DsnRequest(ret, envid), smtputf8=smtputf8)
    assert name == "MAIL" or parse_rcpt(f"TO:<{address}>", smtputf8=True) == (address, NO_REQUEST)


def _check_dsn(address: str, asked: RecipientRequest, of_mail: DsnRequest, *, smtputf8: bool) -> None:
    written = rcpt_line(address or "a@b", asked, smtputf8=True)
    assert not has_control(written)
    assert parse_rcpt(split_command(written)[1], smtputf8=True)[1] == asked
    assert rcpt_line("a@b", asked, smtputf8=False).isascii()
    if asked.orcpt:
        kind, original = original_recipient(asked.orcpt)
        assert f"{kind}; {original}".isascii()
        assert f"{kind}; {original}".isprintable()
    ret, envid = of_mail.ret, of_mail.envid
    line = mail_line("", Shape(0, eight_bit=False, smtputf8=smtputf8), of_mail, has_size=False)
    assert not has_control(line)
    read = parse_mail(split_command(line)[1])
    assert (read.ret, read.envid) == (ret, envid)
    assert envid == "" or decode_xtext(envid).isprintable()


SEEDS = [
    b"\0<a@example.com> SIZE=10 BODY=8BITMIME",
    b"\0<>",
    b'\0<"a@b"@[IPv6:::1]>',
    b"\1\5\0\4\6\0\0\0",
    b"\0<a@example.com> NOTIFY=SUCCESS,DELAY ORCPT=rfc822;a+40b",
    b"\0<a@b> RET=HDRS ENVID=x+2By",
    b'\0"A <" < @r.s,@t:.a..@b_c. >  SIZE=10',
]
