"""The dialogues by which another public server, chasquid, is tested: what is said, and what each replied.

Source: github.com/albertito/chasquid, test/t-12-minor_dialogs, commit ca2538b9745a (Apache License 2.0),
written anew as a table.  `theirs` is the code that chasquid's test expects, `why` is there where the
relay's reply is of another class (its first digit) and says why that is so.
"""

from typing import NamedTuple

PLAIN, TLS = "plain", "tls"
USER, PASSWORD = "user@testserver", "secretpassword"  # chasquid's
MAX_SIZE_BYTES = 1024 * 1024


class Turn(NamedTuple):
    """One reply.  A str is sent as a line; bytes are sent as they are."""

    sent: str | bytes
    theirs: int
    ours: int = 0
    """The first digit of our reply, where it is another."""
    why: str = ""


class Dialogue(NamedTuple):
    name: str
    sessions: tuple[tuple[Turn, ...], ...]
    """Each on a connection of its own, behind the greeting."""
    door: str = PLAIN
    content: bytes = b""
    """What has to arrive, if anything."""


EHLO, HELO = Turn("EHLO localhost", 250), Turn("HELO localhost", 250)
TO_DATA = (
    EHLO, Turn("MAIL FROM: <>", 250), Turn("RCPT TO: user@testserver", 250), Turn("DATA", 354),
)  # fmt: skip
QUIT = Turn("QUIT", 221)
FROM_TESTY = (HELO, Turn("MAIL FROM:<test@testy.com>", 250))
LONG_ADDRESS = f"<{'aaaa5aaaaX' * 15}@{'bbbb5bbbbX' * 15}>"
HEADER = b"From: Mailer daemon <somewhere@horns.com>\r\nSubject: I've come to haunt you\r\n"
SMUGGLED = HEADER + b"\r\nMuahahahaha\r\n\r\n"
BIG = b"Subject: Message too big\r\n\r\n" + (b"a" * 899 + b"\r\n") * 1165

OWN_HOST = "a password that does not leave the host is taken without TLS"
NO_ATTEMPT = "a response that cannot be read is no wrong password: it counts as any refused command does"
ANY_NAME = "a client may call itself anything that fits on a command line"
UNREAD = "content is passed on as it is; a malformed header is not a relay's to judge"
ENDS = "a browser is sent away at once, and 421 says that the connection is closed"

DIALOGUES = (
    Dialogue("auth_multi_dialog", (
        (EHLO, Turn("AUTH SOMETHINGELSE", 534), Turn("AUTH PLAIN", 334),
         Turn("dXNlckB0ZXN0c2VydmVyAHlalala==", 501)),
        (EHLO, Turn("AUTH PLAIN", 334),
         Turn("dXNlckB0ZXN0c2VydmVyAHVzZXJAdGVzdHNlcnZlcgB3cm9uZ3Bhc3N3b3Jk", 535),
         Turn("AUTH PLAIN", 334),
         Turn("dXNlckB0ZXN0c2VydmVyAHVzZXJAdGVzdHNlcnZlcgBzZWNyZXRwYXNzd29yZA==", 235),
         Turn("AUTH PLAIN", 503)),
    ), door=TLS),
    Dialogue("auth_not_tls", ((EHLO, Turn("AUTH PLAIN", 503, 3, OWN_HOST)),)),
    Dialogue("auth_too_many_failures", (
        (EHLO, Turn("AUTH PLAIN something", 501), Turn("AUTH PLAIN something", 501),
         Turn("AUTH PLAIN something", 421, 5, NO_ATTEMPT)),
    ), door=TLS),
    Dialogue("bad_data", (
        (Turn("DATA", 503), HELO, Turn("DATA", 503)),
        (HELO, Turn("MAIL FROM:<a@b>", 250), Turn("RCPT TO: user@testserver", 250), Turn("DATA", 354),
         Turn(HEADER + b"Bad header\r\n\r\nMuahahahaha\r\n\r\n\r\n.\r\n", 554, 2, UNREAD), QUIT),
    ), content=HEADER + b"Bad header\r\n\r\nMuahahahaha\r\n\r\n\r\n"),
    Dialogue("bad_data_dot", (
        (*TO_DATA,
         Turn(SMUGGLED + b".\nThat was a bad line ending, this is a good one.\r\nxxx\r\n.\r\n", 521)),
    )),
    Dialogue("bad_data_dot_2", (
        (*TO_DATA,
         Turn(SMUGGLED + b"xxx\n.\nThat was a bad line ending, this is a good one.\r\n\r\n.\r\n", 521)),
    )),
    Dialogue("bad_data_dot_on_message_too_big", (
        (*TO_DATA, Turn(BIG + b"b" * 55 + b"\r\n.\nHELP\r\nHELP\r\n.\r\n", 521)),
    )),
    Dialogue("bad_mail_from", (
        (HELO, Turn("MAIL LALA: <>", 500), Turn("MAIL FROM:", 500)),
        (HELO, Turn("MAIL FROM:<pepe>", 501), Turn("MAIL FROM:<a@xn--->", 501)),
        (HELO, Turn(f"MAIL FROM:{LONG_ADDRESS}", 501)),
    )),
    Dialogue("bad_rcpt_to", (
        (*FROM_TESTY, Turn("RCPT LALA: <>", 500), Turn("RCPT TO:", 500)),
        (*FROM_TESTY, Turn("RCPT TO:<pepe>", 501), Turn("RCPT TO:<a@xn--->", 501)),
        (*FROM_TESTY, Turn("RCPT TO:<henryⅣ@testserver>", 550), Turn(f"RCPT TO:{LONG_ADDRESS}", 501)),
    )),
    Dialogue("data_dot_stuffing", (
        (*TO_DATA,
         Turn(b"." + HEADER + b"\r\n.Muahahahaha\r\n\r\n..x\r\n\r\n"
              b"..\r\n\r\n.This is stuffy.\r\n\r\n.\r\n", 250),
         QUIT),
    ), content=HEADER + b"\r\nMuahahahaha\r\n\r\n.x\r\n\r\n.\r\n\r\nThis is stuffy.\r\n\r\n"),
    Dialogue("empty_helo", ((Turn("HELO", 501), Turn("EHLO", 501), HELO),)),
    Dialogue("helo", ((HELO, QUIT),)),
    Dialogue("line_too_long", ((Turn(f"HELO {'aaaaaaaaa1' * 105}", 554, 2, ANY_NAME),),)),
    Dialogue("message_too_big", ((*TO_DATA, Turn(BIG + b"a" * 899 + b"\r\n.\r\n", 552), QUIT),)),
    Dialogue("sendmail", ((*TO_DATA, Turn(SMUGGLED + b"\r\n.\r\n", 250), QUIT),), content=SMUGGLED + b"\r\n"),
    Dialogue("unknown_command", ((EHLO, Turn("WHATISTHIS", 500)),)),
    Dialogue("wrong_proto", (
        (Turn("GET /evil HTTP/1.1", 502, 4, ENDS),),
        (Turn("POST /evil HTTP/1.1", 502, 4, ENDS),),
        (Turn("CONNECT www.evil.com:80 HTTP/1.1", 502, 4, ENDS),),
    )),
)  # fmt: skip
