"""What the queue keeps in memory of the recipients that are left."""

from relay.mail.envelope import QueueId
from relay.mail.header import Names
from relay.queue.queued import MOST_RUNS, ListedWords, Queued, RecipientsLeft, origin_of, runs


def test_recipients_in_a_row_of_one_domain_are_one_run_and_the_last_takes_what_follows() -> None:
    assert runs(["a@x.example", "b@X.example", "c@y.example"]) == (("@x.example", 2), ("@y.example", 1))

    found = runs(f"a@{number}.example" for number in range(MOST_RUNS + 2))
    assert (len(found), found[-1]) == (MOST_RUNS, (f"@{MOST_RUNS - 1}.example", 3))


def test_what_a_listing_shows_follows_what_is_left() -> None:
    shown = ListedWords(Names("<1@x>", "grüße"), 7, ("b@x", "c@x"))
    queued = Queued(QueueId("a"), origin_of("s"), 1, 0, 2, listed=shown.text())
    assert queued.shown == shown
    queued.note_left(RecipientsLeft(1, (), ("c@x",)))
    assert queued.shown == ListedWords(Names("<1@x>", "grüße"), 7, ("c@x",))
    assert Queued(QueueId("c"), origin_of("s"), 1, 0, 1).shown == ListedWords()
