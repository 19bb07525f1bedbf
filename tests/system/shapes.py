"""Messages of every shape that mail servers pass on unchanged; fifty of them are a fair sample."""

import random
import re

LINES = [
    b"",
    b".",
    b"..",
    b".\t. dots",
    b"From here on",
    b"plain words",
    b"trailing blanks  \t ",
    "grüße, 你好, 🚲".encode(),
    b"not UTF-8: \xff\xfe\x80\xa0",
    b"\x01 \x1b[31m \x7f",
    b"x" * 998,
]
"""No line is longer than RFC 5322, 2.1.1 allows: mail servers enforce that."""
TRACE = re.compile(rb"Received: .*\r\n(?:[ \t].*\r\n)*")


def shape(number: int) -> bytes:
    """Return the message of this number, always the same; its text has from no line to some 100 KiB."""
    dice = random.Random(number)
    headers = (
        "From: <mjd@front.test>\r\nTo: list@list.test\r\nDate: Sat, 1 Jan 2022 00:00:00 +0000\r\n"
        f"Message-Id: <{number}@front.test>\r\nSubject: grüße {number},\r\n\tfolded\r\n\r\n"
    ).encode()
    count = 0 if number % 10 == 0 else int(10 ** dice.uniform(0, 2.5 if number % 25 else 3))
    return headers + b"".join(dice.choice(LINES) + b"\r\n" for _ in range(count))


def without_traces(content: bytes, count: int) -> bytes:
    """Return the content without so many `Received:` fields on top."""
    for _ in range(count):
        trace = TRACE.match(content)
        assert trace is not None, content[:600]
        content = content[trace.end() :]
    return content
