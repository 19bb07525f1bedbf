"""The faults of upstreams that do not keep to RFC 5321, as turns of the fake smarthost."""

import pytest

from relay.verdicts.verdict import Verdict
from tests.fakes.smarthost import CLOSE, DEFAULT, HALF_CLOSE, RESET, Drip, Turn

DEFER, BOUNCE, PAUSE, STOP = Verdict.DEFER, Verdict.BOUNCE, Verdict.PAUSE, Verdict.STOP
REFUSALS: dict[str, tuple[Turn, Verdict]] = {
    "4yz": ("451 4.3.0 later", DEFER),
    "4yz bare": ("451", DEFER),
    "5yz": ("554 5.6.0 no", BOUNCE),
    "5yz in many lines": (b"554-5.6.0 no\r\n554-5.6.0 no\r\n554 5.6.0 never\r\n", BOUNCE),
    "5yz octet by octet": (Drip(b"554 5.6.0 no\r\n"), BOUNCE),
    "5yz in a line of LF": (b"554 5.6.0 no\n", BOUNCE),
    "5yz in lines of LF and CRLF": (b"554-5.6.0 no\n554 5.6.0 never\r\n", BOUNCE),
    "5yz with CR and NUL inside": (b"554 5.6.0 n\ro\0\r\n", BOUNCE),
    "5yz in a line of 9 kB": (b"554 5.6.0 " + b"x" * 9000 + b"\r\n", BOUNCE),
    "5yz in 50 kB": (b"554-5.6.0 and so on\r\n" * 2300 + b"554 5.6.0 no\r\n", BOUNCE),
    "5yz with a code that contradicts": ("550 4.2.1 no", BOUNCE),
    "530": ("530 5.7.0 log in first", STOP),
    "X.4.5": ("550 5.4.5 daily limit", PAUSE),
    "421": ("421 4.3.2 closing", PAUSE),
    "421, then gone": (["421 4.3.2 closing", CLOSE], PAUSE),
}
AN_END: dict[str, Turn] = {
    "nothing, closed": CLOSE,
    "nothing, reset": RESET,
    "nothing, half closed": HALF_CLOSE,
    "2, closed": [b"2", CLOSE],
    "25, closed": [b"25", CLOSE],
    "250, closed": [b"250", CLOSE],
    "250 , closed": [b"250 ", CLOSE],
    "250 x CR, closed": [b"250 x\r", CLOSE],
    "250-x, closed": [b"250-x\r\n", CLOSE],
    "55, closed": [b"55", CLOSE],
    "550 without its end, closed": [b"550 5.1.1 no", CLOSE],
    "550-x, closed": [b"550-5.1.1 no\r\n", CLOSE],
    "550 without its end, reset": [b"550 5.1.1 no", RESET],
    "250 without its end, half closed": [b"250 ok", HALF_CLOSE],
}
GARBAGE: dict[str, Turn] = {
    "no space": b"250ok\r\n",
    "a digit too many": b"2500 ok\r\n",
    "a digit too few": b"25 ok\r\n",
    "leading space": b" 250 ok\r\n",
    "leading sign": b"+250 ok\r\n",
    "leading line": b"\r\n250 ok\r\n",
    "LF and a code inside": b"550 5.1.1 no\n250 ok\r\n",
    "code 000": "000 nothing",
    "code 199": "199 soon",
    "code 600": "600 beyond",
    "two codes": b"250-ok\r\n550 no\r\n",
    "two codes the other way": b"550-no\r\n250 ok\r\n",
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "TLS alert": b"\x15\x03\x03\x00\x02\x02\x28",
    "noise without end": b"\xff" * 3000,
    "two replies at once": [DEFAULT, DEFAULT],
    "the same refusal twice at once": b"554 5.6.0 no\r\n554 5.6.0 no\r\n",
    "refused and accepted at once": b"554 5.6.0 no\r\n250 2.0.0 ok\r\n",
    "a reply and half of one": [DEFAULT, b"25"],
    "a reply without end": b"554-5.6.0 and so on\r\n" * 5000,
}  # fmt: skip
MEANINGLESS: dict[str, Turn] = {
    "200": "200 fine",
    "220": "220 hello again",
    "221": "221 bye",
    "235": "235 2.7.0 logged in",
    "334": "334 VXNlcm5hbWU6",
    "299": "299 what?",
    "399": "399 what?",
}


def table(of: dict[str, Turn]) -> pytest.MarkDecorator:
    # Turns are consumed by nobody here: a script may be used again.
    return pytest.mark.parametrize("turn", list(of.values()), ids=list(of))
