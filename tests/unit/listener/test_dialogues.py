"""What a client sends to a listener, and the replies: one row for each rule.

A row gives each reply as a code, or as `550/5.6.0` with the enhanced code.  tests/fuzz/listener_session shows
that the replies do not depend on how the octets are cut.
"""

from base64 import b64encode
from pathlib import Path

import pytest

from tests.unit.listener.conversation import GOOD, TRANSACTION, WRONG, listening

HELLO, MAIL = b"EHLO x\r\n", b"MAIL FROM:<a@b>\r\n"
PLAIN, LOGIN = b"AUTH PLAIN", b"AUTH LOGIN"
NAME, PASSWORD = b64encode(b"mjd"), b64encode(b"open sesame")
TAKEN = "250 250 354 250"
SMALL: dict[str, object] = {"max_errors": 3, "max_size": 1500, "max_hops": 2, "max_recipients": 9}

LONG, BAD_END = "500/5.5.2/The/command/line/is/too/long", "500/5.5.2/A/command/must/end/in/CRLF"


def content(octets: bytes) -> bytes:
    return HELLO + TRANSACTION + octets + b".\r\n"


ORDER: list[tuple[bytes, str]] = [
    (
        HELLO + (TRANSACTION + b"one\r\n.\r\n") * 3 + b"NOOP\r\nQUIT\r\n",
        f"250 {TAKEN} {TAKEN} {TAKEN} 250 221",
    ),
    (b"HELO old.example\r\nMAIL FROM:<>\r\nRCPT TO: <b@c>\r\nDATA\r\n.\r\n", f"250 {TAKEN}"),
    (HELLO + MAIL + b"RSET\r\nRCPT TO:<a@b>\r\n", "250 250 250 503"),
    (
        b"HELO two w\xf6rds\r\nEHLO [127.0.0.1]\r\nEHLO [IPv6:2001:db8::1]\r\nHELO localhost.\r\n",
        "250 250 250 250",
    ),
    (b" NOOP\r\nnoop whatever  \r\nbogus\r\n", "500 250 500"),
    (HELLO + b"MAIL FROM:<a@b> \r\nRCPT TO:<c@d> \r\nDATA \r\n.\r\n", f"250 {TAKEN}"),
    (HELLO + b"MAIL FROM:<a@b> RET=HDRS ENVID=QQ+2B1 SIZE=9\r\n", "250 250"),
    (HELLO + b"mail from:<a@b> auth=<> body=7bit size=0\r\n", "250 250"),
    (b"HELO x\r\nMAIL FROM:<>\r\nRCPT TO:<a@b> NOTIFY=NEVER\r\n", "250 250 555"),
    (HELLO + b"MAIL FROM:<>\r\nRCPT TO:<a@b> NOTIFY=NEVER ORCPT=rfc822;a+2Bc@b\r\n", "250 250 250"),
    (
        HELLO + "MAIL FROM:<é@b>\r\n".encode() + MAIL + "RCPT TO:<é@b>\r\n".encode(),
        "250 553/5.6.7 250 553/5.6.7",
    ),
    (HELLO + "MAIL FROM:<é@b> SMTPUTF8\r\nRCPT TO:<ü@ü.example>\r\n".encode(), "250 250 250"),
    (HELLO + b"MAIL FROM:<a@b> SMTPUTF8\r\nRCPT TO:<\xff@b>\r\n", "250 250 501/5.1.3"),
    (b"POST / HTTP/1.1\r\n\r\n" + content(b"spam\r\n"), "421"),
    (HELLO + b"MAIL FROM:<a@b> SIZE=1501\r\n", "250 552/5.3.4"),
    (
        HELLO + b"MAIL FROM:<a@b> SIZE=" + b"9" * 20 + b"\r\nMAIL FROM:<a@b> SIZE=1500\r\n",
        "250 552/5.3.4 250",
    ),
    (content(b"a\nb\r\n") + b"RCPT TO:<b@c>\r\n", "250 250 250 354 550/5.6.0 503"),
    (content(b"a\rb\r\n") + TRANSACTION + b"fine\r\n.\r\n", f"250 250 250 354 550/5.6.0 {TAKEN}"),
    (HELLO + TRANSACTION + b"cut off\r\n.", "250 250 250 354"),
    # Some servers take these for the end of the content (SMTP smuggling).
    *((content(b"a" + end + MAIL), "250 250 250 354 550/5.6.0") for end in (
        b"\n.\n", b"\n.\r\n", b"\r\n.\n", b"\r.\r\n", b"\r\n.\r", b"\r\r\n.\r\r\n")),
    (content(b"Received: x\r\n" * 3 + b"\r\n"), "250 250 250 354 554/5.4.6"),
    (content(b"Received: x\r\n" * 2 + b"\r\n"), "250 250 250 354 250"),
    (content(b"a: b\r\n\r\n" + b"x" * 1600 + b"\r\n") + b"NOOP\r\n", "250 250 250 354 552/5.3.4 250"),
    (b"bogus\r\nNOOP\r\n" * 9, "500 250 500 250 500 421/4.7.0"),
    # An accepted message resets the count of errors: the client means well.
    (
        HELLO + (b"NOOP\r\n" * 95 + b"bogus\r\n" * 2 + TRANSACTION + b"one\r\n.\r\n") * 2,
        "250" + f"{' 250' * 95} 500 500 {TAKEN}" * 2,
    ),
    # Recipients above the limit are no errors, however many come at once (RFC 5321, 4.5.3.1.10).
    (
        HELLO + MAIL + b"".join(b"RCPT TO:<%d@b>\r\n" % n for n in range(2000)) + b"DATA\r\n.\r\nQUIT\r\n",
        "250 250" + " 250" * 9 + " 452/4.5.3" * 1991 + " 354 250 221",
    ),
    (b"NOOP " + b"x" * 2043 + b"\r\n", "250"),
    (b"NOOP " + b"x" * 2044 + b"\r\nNOOP\r\n", LONG),
    (b"NOOP " + b"x" * 100_000, LONG),
    *((line + b"\r\nNOOP\r\n", BAD_END) for line in (
        b"NOOP\nRSET", b"NOOP\n", b"NOOP\r", b"\rNOOP", b"MAIL FROM:<a@b>\rRCPT TO:<c@d>", b"NO\0OP",
        b"NOOP\x7f")),
    (b"NOOP \t\r\n", "250"),
    # Commands that bring no mail count as errors after the first hundred.
    (
        b"HELO x\r\nMAIL FROM:<a@b>\r\nVRFY x\r\nNOOP\r\nRSET\r\n" * 40,
        "250 250 252 250 250 " * 20 + "250 250 252 421/4.7.0",
    ),
]  # fmt: skip
LOGINS: list[tuple[bytes, str]] = [
    (PLAIN + b" " + GOOD + b"\r\n" + PLAIN + b"\r\n" + TRANSACTION + b"x\r\n.", f"235 503 {TAKEN}"),
    (b"auth plain\r\n" + GOOD, "334 235"),
    (PLAIN + b" " + b64encode(b"mjd\0mjd\0open sesame"), "235"),
    (LOGIN + b"\r\n" + NAME + b"\r\n" + PASSWORD, "334 334 235"),
    (LOGIN + b" " + NAME + b"\r\n" + PASSWORD, "334 235"),
    (PLAIN + b" " + b64encode("\0zoë\0schlüssel".encode()), "235"),
    (b"NOOP", "250"),
    (b"AUTH", "501/5.5.4"),
    (b"AUTH CRAM-MD5", "504/5.5.4"),
    (PLAIN + b" *", "501/5.7.0"),
    (PLAIN + b"\r\n*", "334 501/5.7.0"),
    (LOGIN + b"\r\n" + NAME + b"\r\n*", "334 334 501/5.7.0"),
    (PLAIN + b" !!!", "501/5.5.2"),
    (PLAIN + b" \xff", "501/5.5.2"),
    (PLAIN + b" =", "501/5.5.2"),
    (PLAIN + b" " + b64encode(b"mjd\0open sesame"), "501/5.5.2"),
    (PLAIN + b" " + b64encode(b"\0mjd\0\xff"), "501/5.5.2"),
    (PLAIN + b" " + WRONG, "535/5.7.8"),
    (PLAIN + b" " + b64encode(b"\0nobody\0open sesame"), "535/5.7.8"),
    (PLAIN + b" " + b64encode(b"root\0mjd\0open sesame"), "535/5.7.8"),
    (LOGIN + b"\r\n\r\n", "334 334 535/5.7.8"),
    (b"HELO x\r\n" + PLAIN + b" " + GOOD, "250 503/5.5.1"),
]  # fmt: skip


async def _are_told(policy: dict[str, object], sent: bytes, told: str) -> None:
    wanted = [each.replace("/", " ") for each in ("220", *told.split())]
    async with listening({**SMALL, **policy}) as room:
        replies = await room.say(sent)
        found = [line.decode() for line in replies.split(b"\r\n") if line[3:4] == b" "]
        assert room.observer.faults == []
    assert [line[: len(want)] for line, want in zip(found, wanted, strict=True)] == wanted


@pytest.mark.parametrize(("sent", "told"), ORDER)
async def test_each_command_gets_its_reply(sent: bytes, told: str) -> None:
    await _are_told({}, sent, told)


@pytest.mark.parametrize(("lines", "told"), LOGINS)
async def test_only_the_right_password_lets_anybody_send(users_file: Path, lines: bytes, told: str) -> None:
    sent, then = HELLO + lines + b"\r\n", ""
    if TRANSACTION not in sent:
        sent, then = sent + MAIL, " 250" if "235" in told else " 530"
    await _are_told({"users_file": str(users_file), "clients": []}, sent, f"250 {told}{then}")
