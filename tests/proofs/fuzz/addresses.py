"""The arguments of MAIL and RCPT, of any bytes: the address as it was sent, or a refusal in ASCII."""

from relay.mail.address import is_valid_address
from relay.smtp.commands import RcptCommand, Refused, has_control, parse_mail, parse_rcpt, split_command
from tests.proofs.fuzz.choices import Choices
from tests.proofs.fuzz.work import bounded, must_be_shown

PARTS = [
    b"a", b"A.b", b'"a b"', b'"\\""', b"@", b"@", b"example.com", b"[127.0.0.1]", b"[IPv6:::1]", b".", b"-",
    b"<", b">", b" ", b"\\", b'"', b"x" * 64, b"d" * 63 + b".", b"\xc3\xa9", b"\xff", b"=?utf-8?q?a?=",
    b"\r", b"\n", b"\0", b"\t", b"\x7f", b"\xc2\x85", b":", b",", b"(c)", b"SIZE=1", b"SMTPUTF8",
    b"BODY=8BITMIME", b"AUTH=<>",
]  # fmt: skip
TOKENS = PARTS


def target(raw: bytes) -> None:
    choices = Choices(raw)
    if choices.yes():
        inside = b"".join(choices.pick(PARTS) for _ in range(choices.number(12)))
        path = inside if choices.yes() else b"<" + inside + b">"
        argument = choices.spoiled(path + b" " + choices.pick(PARTS), TOKENS)
    else:
        argument = choices.rest()
    for verb in (b"MAIL FROM:", b"RCPT TO:"):
        _check(verb, argument)


def _check(verb: bytes, argument: bytes) -> None:
    name, rest = split_command(verb + argument)
    smtputf8 = True
    try:
        with bounded(2_000):
            if name == "MAIL":
                mail = parse_mail(rest)
                address, smtputf8 = mail.reverse_path, mail.smtputf8
            else:
                rcpt = parse_rcpt(rest, smtputf8=True)
                address = rcpt.recipient
    except Refused as refused:
        must_be_shown(refused)
        return
    octets = address.encode()
    assert b"<" + octets + b">" in argument or argument.lstrip(b" ").startswith(octets)
    assert not has_control(octets)
    assert b"\t" not in octets
    # It goes out as it came in, and whoever takes it in again reads the same.
    assert address == "" or is_valid_address(address, smtputf8=smtputf8)
    assert name == "MAIL" or parse_rcpt(f"TO:<{address}>", smtputf8=True) == RcptCommand(address)


SEEDS = [b"\0<a@example.com> SIZE=10 BODY=8BITMIME", b"\0<>", b'\0<"a@b"@[IPv6:::1]>', b"\1\5\0\4\6\0\0\0"]
