"""Ages over restarts, against an oracle that knows the true time."""

from relay.mail.age import Boots

DAY_NS = 86400 * 10**9


def test_a_message_of_an_older_relay_goes_on_ageing_over_reboots() -> None:
    boots = Boots("one", 1000)
    boots.arrived_at_ns("", 0, 1000, DAY_NS)
    record = boots.record(9000)
    assert Boots("two", 10, record).arrived_at_ns("", 0, 510, DAY_NS) == 510 - 8500


def test_mail_behind_the_last_record_ages_from_the_next_start() -> None:
    record = Boots("one", 0).record(1000)
    assert Boots("two", 10, record).arrived_at_ns("one", 5000, 510, 0) == 10


def test_unknown_boots_are_forgotten_with_their_last_message() -> None:
    boots = Boots("here", 0)
    for boot_id in ("gone", "queued"):
        boots.arrived_at_ns(boot_id, 7, 10, 0)
    boots.forget_but({"queued", "here"})
    assert boots.record(10).met_at_ns == {"queued": 10}
