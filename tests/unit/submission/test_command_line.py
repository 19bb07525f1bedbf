"""The options of sendmail(1)."""

from pathlib import Path

import pytest

from relay.mail.dsn import Notify, Ret
from relay.submission.command_line import Mode, SendmailCall, WrongUsage, parse_call

IGNORED = "-m -n -v -G -I -U -Ac -B8BITMIME -h 3 -L tag -X log -oem -O DeliveryMode=b -pSMTP -e m -C file"
SENT_BY_A = SendmailCall(sender="a@b.test")


@pytest.mark.parametrize(
    ("words", "call"),
    [
        *((words, SendmailCall(dot_ends=False)) for words in ("-i", "-oi", "-o i", "-oem -oi")),
        *((words, SENT_BY_A) for words in ("-fa@b.test", "-f a@b.test", "-ra@b.test")),
        ("-tfa@b.test", SendmailCall(sender="a@b.test", takes_header=True)),
        ("a@b.test -i c@d.test", SendmailCall(recipients=["a@b.test", "c@d.test"], dot_ends=False)),
        ("-i -- -f -t", SendmailCall(recipients=["-f", "-t"], dot_ends=False)),
        (f"{IGNORED} a@b.test", SendmailCall(recipients=["a@b.test"])),
        ("-bm", SendmailCall()),
        ("-bp", SendmailCall(mode=Mode.LIST)),
        ("-bs", SendmailCall(mode=Mode.SMTP)),
        ("-bi", SendmailCall(mode=Mode.NEW_ALIASES)),
        *((words, SendmailCall(mode=Mode.FLUSH)) for words in ("-q", "-q15m", "-q -v")),
        ("--policy p.yaml --spool=s", SendmailCall(policy=Path("p.yaml"), spool=Path("s"))),
        ("-Nnever", SendmailCall(notify=Notify.NEVER)),
        (
            "-N success,DELAY -Rhdrs -V batch+1",
            SendmailCall(notify=Notify.SUCCESS | Notify.DELAY, ret=Ret.HDRS, envid="batch+2B1"),
        ),
    ],
)
def test_options_are_those_of_sendmail(words: str, call: SendmailCall) -> None:
    assert parse_call(words.split(" ")) == call


def test_an_empty_sender_is_the_null_path() -> None:
    assert parse_call(["-f", ""]).sender == ""


@pytest.mark.parametrize(
    "words",
    [
        *(["-bd"], ["-bv"], ["-z"], ["-f"], ["--policy"], ["--verbose"], ["-N", "always"]),
        *(["-N", "never,delay"], ["-N", ""], ["-R", "all"], ["-V", ""], ["-V", "é"], ["-V", "a\nb"]),
        ["-V", "x" * 101],
    ],
)
def test_what_is_not_known_is_wrong_usage(words: list[str]) -> None:
    with pytest.raises(WrongUsage):
        parse_call([*words, "a@b.test"] if len(words) > 1 else words)
