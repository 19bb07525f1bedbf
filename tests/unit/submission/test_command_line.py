"""The options of sendmail(1)."""

from pathlib import Path

import pytest

from relay.mail.dsn import Notify, Ret
from relay.submission.command_line import Mode, SendmailCall, WrongUsage, parse_call


def test_recipients_may_stand_before_and_behind_options() -> None:
    assert parse_call(["a@b.test", "-i", "c@d.test"]).recipients == ["a@b.test", "c@d.test"]


def test_nothing_behind_two_dashes_is_an_option() -> None:
    assert parse_call(["-i", "--", "-f", "-t"]) == SendmailCall(dot_ends=False, recipients=["-f", "-t"])


@pytest.mark.parametrize("words", [["-i"], ["-oi"], ["-o", "i"], ["-ti"], ["-oem", "-oi"]])
def test_each_spelling_of_i_keeps_a_lone_dot(words: list[str]) -> None:
    assert not parse_call(words).dot_ends


@pytest.mark.parametrize("words", [["-fa@b.test"], ["-f", "a@b.test"], ["-ra@b.test"], ["-tfa@b.test"]])
def test_a_sender_may_stand_in_its_options_word(words: list[str]) -> None:
    assert parse_call(words).sender == "a@b.test"


def test_an_empty_sender_is_the_null_path() -> None:
    assert parse_call(["-f", ""]).sender == ""


@pytest.mark.parametrize(
    "words",
    [
        [
            *("-m", "-n", "-v", "-G", "-I", "-U", "-Ac", "-B8BITMIME", "-h", "3", "-L", "tag", "-X"),
            *("log", "-oem"),
        ],
        ["-O", "DeliveryMode=b", "-pSMTP", "-e", "m", "-C", "file"],
    ],
)
def test_what_changes_nothing_is_ignored_with_its_value(words: list[str]) -> None:
    assert parse_call([*words, "a@b.test"]) == SendmailCall(recipients=["a@b.test"])


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        (["-bm"], Mode.SUBMIT),
        (["-bp"], Mode.LIST),
        (["-bs"], Mode.SMTP),
        (["-bi"], Mode.NEW_ALIASES),
        (["-q"], Mode.FLUSH),
        (["-q15m"], Mode.FLUSH),
        (["-q", "-v"], Mode.FLUSH),
    ],
)
def test_each_mode_has_its_option(words: list[str], mode: Mode) -> None:
    assert parse_call(words) == SendmailCall(mode=mode)


def test_the_policy_and_the_spool_may_be_named() -> None:
    call = parse_call(["--policy", "p.yaml", "--spool=s"])

    assert (call.policy, call.spool) == (Path("p.yaml"), Path("s"))


def test_what_the_sender_wants_to_be_told_is_asked_for() -> None:
    call = parse_call(["-N", "success,DELAY", "-Rhdrs", "-V", "batch 7+1", "a@b.test"])

    assert (call.notify, call.ret, call.envid) == (Notify.SUCCESS | Notify.DELAY, Ret.HDRS, "batch+207+2B1")
    assert parse_call(["-Nnever"]).notify == Notify.NEVER


@pytest.mark.parametrize(
    "words", [["-N", "always"], ["-N", "never,delay"], ["-N", ""], ["-R", "all"], ["-V", ""], ["-V", "é"],
              ["-V", "a\nb"], ["-V", "x" * 101]],
)  # fmt: skip
def test_what_rfc_3461_does_not_know_is_wrong_usage(words: list[str]) -> None:
    with pytest.raises(WrongUsage):
        parse_call([*words, "a@b.test"])


@pytest.mark.parametrize("words", [["-bd"], ["-bv"], ["-z"], ["-f"], ["--policy"], ["--verbose"]])
def test_what_is_not_known_is_refused(words: list[str]) -> None:
    with pytest.raises(WrongUsage):
        parse_call(words)
