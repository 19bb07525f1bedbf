"""Limits for each key: what messages are told apart by, and that a full key keeps back no other."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.mail.envelope import Envelope
from relay.throttle.admission import Place, Request, Wait, keys_of, request_for
from relay.throttle.history_format import comparable_key
from relay.throttle.limit import ForEach, plain_words
from relay.throttle.throttle import Reservation, Throttle
from tests.engines.history.limits import PerPeriod, Rise, messages, recipients, settle, throttle
from tests.engines.history.memory_disk import MemoryDisk
from tests.fakes.clock import FakeClock

PATH = Path("/history/isp")
SENDERS = [
    ["a@h.example", '"a"@h.example', '"\\a"@h.example', "A@H.example.", "a@h\u3002example\u3002"],
    ['"a b"@h.example', '"a\\ b"@h.example', '"A b"@h.example'],
    ['"a\\"b"@h.example', '"\\a\\"\\b"@h.example'],
    ["a@[IPv6:2001:db8::1]", "a@[ipv6:2001:0DB8:0:0::0001]", '"a"@[IPv6:2001:db8::1]'],
    ["a@[192.0.2.1]", "a@[IPv6:::ffff:192.0.2.1]"],
    ["\u00e9@h.example", "e\u0301@h.example", "\u00c9@h.example", '"e\u0301"@h.example'],
    ["a@b\u00fccher.example", "a@bu\u0308cher.example", "a@XN--BCHER-KVA.example"],
    ["a@stra\u00dfe.example", "a@xn--strae-oqa.example", "a@strasse.example"],
    ["STRASSE@h.example", "stra\u00dfe@h.example"],
]
OTHERS = ["a@h.example", "b@h.example", "a+b@h.example", "a.b@h.example", "a@i.example", '"a "@h.example']
ADDRESSES = st.one_of(
    st.sampled_from([spelling for each in SENDERS for spelling in each] + OTHERS),
    st.text(max_size=80),
    st.builds(
        "{}@{}".format,
        st.text('ab"\\@. %[]\u00e9e\u0301\u0130\u0345\u03a3', max_size=100),
        st.text("abxn-.[]:ipv6%\u00df\u3002\u0307", max_size=100) | st.text(max_size=20).map("xn--{}".format),
    ),
)


def _request(reverse_path: str, *recipients: str, client: str = "local", most: int = 100) -> Request:
    envelope = Envelope(reverse_path, recipients or ("c@d.example",), 0, client, "here", "ESMTP")
    return request_for(envelope, range(len(envelope.recipients)), most)


def _granted(account: Throttle, *requests: Request) -> list[bool]:
    return [isinstance(account.reserve([each])[0], Reservation) for each in requests]


@pytest.mark.parametrize(
    ("reverse_path", "sender", "domain"),
    [
        ("Alice@B.Example.", "alice@b.example", "b.example"),
        ("ä@bücher.example", "%c3%a4@xn--bcher-kva.example", "xn--bcher-kva.example"),
        ('"a b@c"@d.example', "a%20b@c@d.example", "d.example"),
        ("a@[IPv6:2001:DB8::1]", "a@[ipv6:2001:db8::1]", "[ipv6:2001:db8::1]"),
        ("", "", ""),
        ("postmaster", "postmaster", ""),
    ],
)
def test_senders_and_their_domains(reverse_path: str, sender: str, domain: str) -> None:
    request = _request(reverse_path)

    assert (request.sender, request.sender_domain) == (sender, domain)


def test_a_client_is_its_address_and_a_user_the_name_of_the_login() -> None:
    for client, key in [
        ("mail.example[192.0.2.1]", "192.0.2.1"),
        ("unknown[2001:DB8::1]", "2001:db8::1"),
        ("local", "local"),
    ]:
        assert _request("a@b.example", client=client).client == key
    for user, key in [(None, ""), ("printer", "printer"), ("zoë b", "zo%c3%ab%20b")]:
        envelope = Envelope("a@b.example", ("c@d.example",), 0, "local", "", "ESMTPA", user=user)
        assert request_for(envelope, [0], 1).user == key


def test_only_the_recipients_that_are_asked_for_count() -> None:
    request = _request("a@b.example", "a@x.example", "b@Y.example", "c@x.example.", most=2)
    envelope = Envelope("a@b.example", ("a@x.example", "b@y.example", "c@z.example"), 0, "local", "", "ESMTP")

    assert request.recipient_domains == ("x.example", "y.example", "x.example")
    assert (request.recipients, request.largest) == (3, 2)
    assert request_for(envelope, [2, 0], 9).recipient_domains == ("z.example", "x.example")


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (PerPeriod(100, 3600 * SECOND_NS), "100 messages per 1h"),
        (PerPeriod(10, 90 * SECOND_NS, "connections"), "10 connections per 90s"),
        (
            PerPeriod(5, 86400 * SECOND_NS, for_each="sender_domain"),
            "5 messages per 24h for each sender domain",
        ),
        (PerPeriod(7, 60 * SECOND_NS, "recipients", "lane", "lists"), "7 recipients per 1m for lane lists"),
        (PerPeriod(1 << 30, 86400 * SECOND_NS, "bytes"), "1G per 24h"),
        (
            PerPeriod(9, 86400 * SECOND_NS, rise=Rise(2, 9, 864000 * SECOND_NS)),
            "9 messages per 24h, from 2 over 10d",
        ),
    ],
)
def test_people_read_a_limit_in_the_units_of_a_policy(limit: PerPeriod, words: str) -> None:
    assert plain_words(limit) == words


@pytest.mark.parametrize("spellings", SENDERS)
@pytest.mark.parametrize("kind", ["sender", "sender_domain", "recipient_domain"])
def test_a_limit_for_each_holds_for_all_spellings(
    kind: ForEach, spellings: list[str], memory: MemoryDisk, clock: FakeClock
) -> None:
    account = throttle(PATH, memory, clock, [messages(3, seconds=3600, for_each=kind)])

    assert sum(_granted(account, *[_request(each, each) for each in spellings * 3])) == 3


def test_what_is_another_sender_has_a_window_of_its_own(memory: MemoryDisk, clock: FakeClock) -> None:
    account = throttle(PATH, memory, clock, [messages(1, seconds=3600, for_each="sender")])

    assert sum(_granted(account, *[_request(each) for each in OTHERS * 2])) == len(OTHERS)


@given(ADDRESSES)
def test_a_key_that_was_written_is_read_as_it_is(address: str) -> None:
    sender, domain, _, _ = keys_of(address, "local", "")
    for key, kind in ((sender, "sender"), (domain, "sender_domain"), (domain, "recipient_domain")):
        assert comparable_key(kind, key) == key
    assert not {'"', "\\"} & set(sender)


def test_a_limit_for_each_key_looks_at_its_key_alone(memory: MemoryDisk, clock: FakeClock) -> None:
    account = throttle(PATH, memory, clock, [messages(1, 10, "sender_domain"), messages(2, 10, "client")])
    mail = [("x", "1"), ("x", "2"), ("y", "1"), ("z", "1"), ("z", "2")]
    requests = [Request(1, sender=f"a@{d}", sender_domain=d, client=client) for d, client in mail]

    assert _granted(account, *requests) == [True, False, True, False, True]


def test_a_full_lane_waits_in_its_place_and_all_others_go_on(memory: MemoryDisk, clock: FakeClock) -> None:
    ceiling = PerPeriod(2, 60 * SECOND_NS, "messages", "lane", "list")
    account = throttle(PATH, memory, clock, [messages(5, 60), ceiling])

    answers = account.reserve(
        [Request(1, lane=lane) for lane in ("list", "list", "list", "", "other", "list")]
    )

    assert [isinstance(answer, Reservation) for answer in answers] == [True, True, False, True, True, False]
    waits = [answer for answer in answers if isinstance(answer, Wait)]
    assert {wait.place for wait in waits} == {Place("lane", "list")}
    assert account.room_in("list")[0] == 0
    assert account.room_in("other") == (None, clock.boottime_ns())


def test_a_new_ceiling_knows_what_the_lane_holds(memory: MemoryDisk, clock: FakeClock) -> None:
    limits = [messages(20, 60)]
    account = throttle(PATH, memory, clock, limits)
    answers = account.reserve([Request(1, lane=lane) for lane in ("list", "other", "list", "other", "other")])
    settle(account, clock, *[answer for answer in answers if isinstance(answer, Reservation)])
    account.flush()

    ceilings = [
        *limits,
        *(PerPeriod(4, limits[0].per_ns, "messages", "lane", it) for it in ("list", "other")),
    ]
    account.replan(ceilings, 0)
    anew = throttle(PATH, memory, clock, ceilings)
    anew.flush()

    for each in (account, anew):
        assert [each.room_in(lane)[0] for lane in ("list", "other", "third")] == [2, 1, None]
        assert [usage.used for usage in each.usage()] == [5, 2, 3]


def test_a_message_is_split_to_fit_and_room_for_a_domain_widens_no_transaction(
    memory: MemoryDisk, clock: FakeClock
) -> None:
    ceiling = PerPeriod(4, 60 * SECOND_NS, "recipients", "lane", "list")
    account = throttle(PATH, memory, clock, [recipients(10, 60), ceiling])
    for lane, fits in (("list", 4), ("other", 6)):
        (answer,) = account.reserve([Request(9, lane=lane)])
        assert isinstance(answer, Reservation)
        assert answer.recipients == fits

    account = throttle(PATH.with_name("two"), memory, clock, [recipients(5, 10, "recipient_domain")])
    (answer,) = account.reserve([Request(4, recipient_domains=("x", "y", "x", "y"), most=2)])
    assert isinstance(answer, Reservation)
    assert list(answer.chosen) == [0, 1]
