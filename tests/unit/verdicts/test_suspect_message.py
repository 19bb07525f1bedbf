"""What is evidence against one message, and what is not; who goes last while an upstream is in doubt."""

import copy

from relay.mail.envelope import QueueId
from relay.queue.queued import Queued, RecipientsLeft, WaitReason, origin_of
from relay.queue.scheduler import MOST_PASSED_OVER, Scheduler
from relay.queue.sender_pauses import SenderPauses
from relay.smtp.reply import Phase, Reply
from relay.verdicts.decision import EVIDENT, REFUSALS_IN_PLACE
from relay.verdicts.outcome import Answer, Outcome, gravest
from relay.verdicts.verdict import Verdict
from tests.unit.sender.test_verdicts import World


def an_outcome(given_verdicts: list[Verdict]) -> Outcome:
    reply = Reply(421, None, "no")
    answers = tuple(Answer(verdict, Phase.MAIL, reply, "421 no") for verdict in given_verdicts)
    return Outcome(answers, pause=gravest(answers))


def a_message(number: int, sender: str) -> Queued:
    return Queued(QueueId(f"{number:016d}"), origin_of(sender), 100, 0, 1)


def goes(scheduler: Scheduler) -> str:
    taken = scheduler.next_ready(0)
    assert taken is not None
    return taken.queue_id.lstrip("0")


def refuse(scheduler: Scheduler, queued: Queued) -> None:
    """Have the upstream refuse a message that was taken, as if for our fault."""
    refusals = queued.past.refusals + 1
    scheduler.attempted(
        queued.queue_id, tried=frozenset(), refusals=refusals, singled_out=0, left=RecipientsLeft()
    )
    scheduler.doubt(queued.reverse_path)
    scheduler.refused(queued.queue_id, 1, WaitReason("421 no"))


def test_an_upstream_is_well_by_what_it_was_asked_since_a_refusal() -> None:
    world = World()

    def wellness(*, began_ns: int) -> bool:
        world.pausing.feel(an_outcome([Verdict.RELAYED]), began_ns)
        world.clock.advance(5)
        return world.pausing.is_well

    before_ns = world.clock.boottime_ns()
    assert wellness(began_ns=before_ns)
    world.refused(Phase.CONNECT, "421 no")
    # What was in flight when the refusal came says nothing of what came then.
    assert not wellness(began_ns=before_ns)
    assert wellness(began_ns=world.clock.boottime_ns())


def test_a_sender_is_refused_alone_where_others_are_relayed() -> None:
    resting, now_ns = SenderPauses(), 1
    for _ in range(EVIDENT):
        assert not resting.is_alone("bad", now_ns)
        now_ns = resting.begin("bad", now_ns, "no", relayed_from_ns=now_ns - 1)
    assert resting.is_alone("bad", now_ns)
    # Nothing was relayed since the last one.
    assert not resting.is_alone("bad", 0)
    now_ns = resting.begin("bad", now_ns, "no", relayed_from_ns=0)
    assert not resting.is_alone("bad", now_ns)


def test_in_doubt_the_untried_go_first_then_the_longest_refused() -> None:
    scheduler = Scheduler()
    for number, sender in enumerate(["bad", "bad", "also", "good"], 1):
        scheduler.add(a_message(number, sender))
    order = []
    for _ in range(6):
        order.append(goes(scheduler))
        queued = scheduler.get(QueueId(f"{int(order[-1]):016d}"))
        assert queued is not None
        refuse(scheduler, queued)
    assert order == ["1", "3", "4", "2", "1", "3"]
    # A copy goes on the same way, and nobody is forgotten.
    twin = scheduler.twin(copy.copy(queued) for queued in scheduler)
    went = [goes(twin) for _ in range(4)]
    assert went == [goes(scheduler) for _ in range(4)]
    assert sorted(went) == ["1", "2", "3", "4"]


def test_out_of_doubt_each_message_has_its_place_again() -> None:
    scheduler = Scheduler()
    for number, sender in enumerate(["bad", "bad", "bad", "good", "good"], 1):
        scheduler.add(a_message(number, sender))
    bad = scheduler.next_ready(0)
    assert bad is not None
    bad.past = bad.past.but(refusals=REFUSALS_IN_PLACE - 1)
    refuse(scheduler, bad)
    assert goes(scheduler) == "4"
    scheduler.trust()
    assert [goes(scheduler) for _ in range(4)] == ["2", "3", "5", "1"]


def test_suspect_mail_can_be_held_and_removed() -> None:
    scheduler = Scheduler()
    for number, sender in enumerate(["bad", "bad", "bad", "bad", "good"], 1):
        scheduler.add(a_message(number, sender))
    scheduler.doubt("bad")
    assert goes(scheduler) == "5"
    scheduler.hold(QueueId(f"{1:016d}"))
    scheduler.remove(QueueId(f"{2:016d}"))
    scheduler.trust()
    assert [goes(scheduler), goes(scheduler)] == ["3", "4"]
    assert scheduler.next_ready(0) is None
    scheduler.release(QueueId(f"{1:016d}"))
    assert goes(scheduler) == "1"


def test_no_more_than_a_few_of_a_long_queue_are_passed_over() -> None:
    scheduler = Scheduler()
    for number in range(1, MOST_PASSED_OVER):
        scheduler.add(a_message(number, "bad"))
    for number in range(2):
        scheduler.add(a_message(MOST_PASSED_OVER + number, "good"))
    scheduler.doubt("bad")
    assert [goes(scheduler) for _ in range(3)] == [f"{MOST_PASSED_OVER}", f"{MOST_PASSED_OVER + 1}", "1"]
    for number in range(MOST_PASSED_OVER + 2, MOST_PASSED_OVER + 4):
        scheduler.add(a_message(number, "bad"))
    scheduler.add(a_message(2 * MOST_PASSED_OVER, "good"))
    # One further behind waits for its turn: a look is bounded.
    assert goes(scheduler) == "2"
    assert goes(scheduler) == f"{2 * MOST_PASSED_OVER}"
    scheduler.trust()
    assert [goes(scheduler) for _ in range(3)] == ["3", "4", "5"]
