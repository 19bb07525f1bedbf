"""The queue as mailq(1) prints it."""

from dataclasses import replace

from relay.cli.local_mail.mailq import mailq_lines
from relay.status.snapshot import QueueState
from tests.fakes.snapshots import FIRST, SECOND, a_message


def test_an_empty_queue_is_said_in_postfixs_words() -> None:
    assert list(mailq_lines([])) == ["Mail queue is empty"]


def test_a_message_stands_in_postfixs_columns() -> None:
    message = replace(a_message(FIRST), recipients=("x@y.test",), reason="no room", size_bytes=2000)
    held = replace(message, queue_id=SECOND, state=QueueState.HELD, reverse_path="", reason="")
    header, first, reason, recipient, _, second, *_, trailer = mailq_lines([message, held])

    assert header == "----Queue ID----- --Size-- ---Arrival Time---- --Sender/Recipient------"
    assert first.split()[:2] == [FIRST, "2000"]
    assert first.index(message.reverse_path) == recipient.index("x@y.test") == 47
    assert (len(reason), reason.strip()) == (76, "(no room)")
    assert second.split()[0] == f"{SECOND}!"
    assert second.endswith(" MAILER-DAEMON")
    assert trailer == "-- 4 Kbytes in 2 Requests."
