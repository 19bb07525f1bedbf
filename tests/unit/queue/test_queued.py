"""What the queue keeps in memory of the recipients that are left."""

from relay.mail.envelope import QueueId
from relay.mail.header import Names
from relay.queue.queued import ListedWords, Queued, RecipientsLeft, origin_of


def test_what_a_listing_shows_follows_what_is_left() -> None:
    shown = ListedWords(Names("<1@x>", "grüße"), 7, ("b@x", "c@x"))
    queued = Queued(QueueId("a"), origin_of("s"), 1, 0, 2, listed=shown.text())
    assert queued.shown == shown
    queued.note_left(RecipientsLeft(1, "", ("c@x",)))
    assert queued.shown == ListedWords(Names("<1@x>", "grüße"), 7, ("c@x",))
    assert Queued(QueueId("c"), origin_of("s"), 1, 0, 1).shown == ListedWords()
