"""Who a client is, whether it may relay, and how many of it there may be."""

from collections import Counter
from ipaddress import ip_network

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relay.listener.access import Admission, Client, ClientNetworks, ClientPlace, most_strangers
from relay.smtp import replies


@pytest.mark.parametrize(
    ("host", "label", "origin", "is_loopback"),
    [
        ("127.0.0.1", "unknown[127.0.0.1]", "127.0.0.1", True),
        ("::1", "unknown[::1]", "::/64", True),
        ("::ffff:192.0.2.1", "unknown[192.0.2.1]", "192.0.2.1", False),
        ("::ffff:127.0.0.1", "unknown[127.0.0.1]", "127.0.0.1", True),
        ("fe80::1%eth0", "unknown[fe80::1]", "fe80::/64", False),
        ("2001:db8:1:2:3:4:5:6", "unknown[2001:db8:1:2:3:4:5:6]", "2001:db8:1:2::/64", False),
    ],
)
def test_client_is_its_address(host: str, label: str, origin: str, is_loopback: bool) -> None:
    client = Client.of_peer(host)

    assert (str(client), client.origin, client.is_loopback) == (label, origin, is_loopback)


def test_address_mapped_into_ipv6_is_matched_as_ipv4() -> None:
    relaying = ClientNetworks([ip_network("192.0.2.0/24"), ip_network("2001:db8::/32")])

    for host in ("192.0.2.9", "::ffff:192.0.2.9", "2001:db8::9"):
        assert relaying.has(Client.of_peer(host))
    for host in ("192.0.3.9", "::ffff:192.0.3.9", "2001:db9::9", "::1", "127.0.0.1"):
        assert not relaying.has(Client.of_peer(host))
    assert not ClientNetworks([]).has(Client.of_peer("127.0.0.1"))


MAX_CONNECTIONS, MAX_PER_CLIENT, MAX_STRANGERS = 6, 3, 4
CLIENTS = [f"192.0.2.{number}" for number in range(3)]
OTHERS = ["198.51.100.7", "198.51.100.8", "2001:db8:1:1::1", "2001:db8:1:1::2", "2001:db8:1:2::1"]


def _place(host: str, *, may_relay: bool) -> ClientPlace:
    return ClientPlace(Client.of_peer(host), may_relay, lambda: None)


class Places(RuleBasedStateMachine):
    """Connections come, step nearer to a login, log in and leave, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.admission = Admission(MAX_CONNECTIONS, MAX_PER_CLIENT, MAX_STRANGERS)
        self.strangers: list[ClientPlace] = []
        """The one without a step for longest first."""
        self.others: list[ClientPlace] = []

    @rule(host=st.sampled_from(CLIENTS), is_short=st.booleans())
    def client_comes(self, host: str, is_short: bool) -> None:
        place = _place(host, may_relay=True)
        of_client = sum(other.client == place.client for other in self.others)
        before = self.admission.total
        refusal, gives_way = self.admission.enter(place, is_short=is_short)
        self._count_out(gives_way)
        assert not is_short or self.admission.total <= before
        if refusal is None:
            self.others.append(place)
            assert of_client < MAX_PER_CLIENT
        else:
            # Never because of strangers: by its own number, or by the number of those who may relay.
            is_full = len(self.others) == MAX_CONNECTIONS or (is_short and not self.strangers)
            assert of_client == MAX_PER_CLIENT or is_full

    @rule(host=st.sampled_from(OTHERS), is_short=st.booleans())
    def stranger_comes(self, host: str, is_short: bool) -> None:
        place = _place(host, may_relay=False)
        held = [each.counted_as for each in self.strangers + self.others].count(place.counted_as)
        refusal, gives_way = self.admission.enter(place, is_short=is_short)
        assert not is_short or refusal is not None or gives_way is not None
        if gives_way is not None:
            origins = [stranger.counted_as for stranger in [*self.strangers, place]]
            most = max(origins.count(stranger.counted_as) for stranger in self.strangers)
            heaviest = [each for each in self.strangers if origins.count(each.counted_as) == most]
            assert gives_way is heaviest[0]
        self._count_out(gives_way)
        if refusal is None:
            self.strangers.append(place)
            assert held < MAX_PER_CLIENT
        else:
            is_full = len(self.others) == MAX_CONNECTIONS or (is_short and not self.strangers)
            assert held == MAX_PER_CLIENT or is_full

    @precondition(lambda self: self.strangers)
    @rule(choice=st.integers(0, 10), logs_in=st.booleans())
    def stranger_steps(self, choice: int, logs_in: bool) -> None:
        place = self.strangers.pop(choice % len(self.strangers))
        if logs_in:
            self.admission.log_in(place)
            self.others.append(place)
        else:
            self.admission.step(place)
            self.strangers.append(place)

    @precondition(lambda self: self.strangers or self.others)
    @rule(choice=st.integers(0, 10))
    def one_leaves(self, choice: int) -> None:
        everybody = self.strangers + self.others
        place = everybody[choice % len(everybody)]
        (self.strangers if place in self.strangers else self.others).remove(place)
        self.admission.leave(place)
        self.admission.leave(place)  # and is out, however often that is said

    @invariant()
    def counts_are_those_of_who_is_there(self) -> None:
        everybody = self.strangers + self.others
        assert self.admission.total == len(everybody) <= MAX_CONNECTIONS
        assert self.admission.strangers == len(self.strangers) <= MAX_STRANGERS
        assert self.admission._open == Counter(place.counted_as for place in everybody)

    def teardown(self) -> None:
        for place in self.strangers + self.others:
            self.admission.leave(place)
        assert (self.admission.total, self.admission.clients) == (0, 0)

    def _count_out(self, gives_way: ClientPlace | None) -> None:
        if gives_way is not None:
            self.strangers.remove(gives_way)
            # As the session does, when it has ended: that must count nothing twice.
            self.admission.leave(gives_way)


TestPlaces = Places.TestCase


def test_strangers_of_one_network_of_64_bits_count_as_one() -> None:
    admission = Admission(100, 3, 100)
    entries = [admission.enter(_place(f"2001:db8:1:1::{n:x}", may_relay=False)) for n in range(5)]

    assert [entry.refusal for entry in entries] == [None] * 3 + [replies.TOO_MANY_FROM_CLIENT] * 2
    assert admission.enter(_place("2001:db8:1:2::1", may_relay=False)).refusal is None


def test_strangers_hold_all_places_only_where_they_can_log_in() -> None:
    assert most_strangers(200, can_log_in=True) == 200
    assert most_strangers(200, can_log_in=False) == 20
    assert most_strangers(5, can_log_in=False) == 1
