"""Two spellings of one sender, or of one domain, share one window; also where an older version wrote them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.mail.address import is_valid_address
from relay.mail.envelope import Envelope
from relay.spool.disk.durable import Disk
from relay.throttle.admission import keys_of, request_for
from relay.throttle.history_format import (
    LONGEST_KEY,
    UNKNOWN,
    At,
    Record,
    Reserved,
    Share,
    comparable_key,
    group,
    header,
    key_of,
)
from relay.throttle.limit import ForEach
from relay.throttle.throttle import Request, Reservation, Throttle
from tests.fakes.clock import FakeClock
from tests.unit.throttle.limits import TRANSACTION_NS, messages, throttle
from tests.unit.throttle.memory_disk import MemoryDisk

PATH = Path("/history/isp")
SENDERS = [
    [
        "a@h.example",
        '"a"@h.example',
        '"\\a"@h.example',
        "A@H.example",
        "a@h.example.",
        "a@h\u3002example\u3002",
    ],
    ['"a b"@h.example', '"a\\ b"@h.example', '"A b"@h.example'],
    ['"a\\"b"@h.example', '"\\a\\"\\b"@h.example'],
    [
        "a@[IPv6:2001:db8::1]",
        "a@[IPv6:2001:DB8:0:0::1]",
        "a@[ipv6:2001:0db8::0001]",
        '"a"@[IPv6:2001:db8::1]',
    ],
    ["a@[192.0.2.1]", "a@[IPv6:::ffff:192.0.2.1]"],
    ["\u00e9@h.example", "e\u0301@h.example", "\u00c9@h.example", '"e\u0301"@h.example'],
    ["a@b\u00fccher.example", "a@bu\u0308cher.example", "a@xn--bcher-kva.example", "a@XN--BCHER-KVA.example"],
    ["a@stra\u00dfe.example", "a@xn--strae-oqa.example", "a@strasse.example"],
    ["STRASSE@h.example", "stra\u00dfe@h.example"],
]
OTHERS = [
    "a@h.example",
    "b@h.example",
    "a+b@h.example",
    "a.b@h.example",
    "a@i.example",
    '"a "@h.example',
    "ab@h.example",
]
ADDRESSES = st.one_of(
    st.sampled_from([spelling for each in SENDERS for spelling in each] + OTHERS),
    st.text(max_size=80),
    st.builds(
        "{}@{}".format,
        st.text('ab"\\@. %[]\u00e9e\u0301\u0130\u0345\u03a3', max_size=100),
        st.text("abxn-.[]:ipv6%\u00df\u3002\u0307", max_size=100) | st.text(max_size=20).map("xn--{}".format),
    ),
)


def _request(sender: str, *recipients: str) -> Request:
    envelope = Envelope(sender, recipients or ("c@d.example",), 0, "mail[192.0.2.1]", "here", "ESMTP")
    return request_for(envelope, range(len(envelope.recipients)), 100)


def _granted(account: Throttle, *requests: Request) -> int:
    return sum(isinstance(account.reserve([each])[0], Reservation) for each in requests)


@pytest.mark.parametrize("spellings", SENDERS)
@pytest.mark.parametrize("kind", ["sender", "sender_domain", "recipient_domain"])
def test_a_limit_for_each_holds_for_all_spellings(
    kind: ForEach, spellings: list[str], path: Path, disk: Disk, clock: FakeClock
) -> None:
    account = throttle(path, disk, clock, [messages(3, seconds=3600, for_each=kind)])

    assert _granted(account, *[_request(each, each) for each in spellings * 3]) == 3


def test_what_is_another_sender_has_a_window_of_its_own(path: Path, disk: Disk, clock: FakeClock) -> None:
    account = throttle(path, disk, clock, [messages(1, seconds=3600, for_each="sender")])

    assert _granted(account, *[_request(each) for each in OTHERS * 2]) == len(OTHERS)


def _as_it_was(address: str) -> str:
    """Return the key that versions up to 2026-11-22 wrote, in their own words."""
    local, _, domain = address.rpartition("@")
    domain = domain.lower().rstrip(".")
    if not domain.isascii():
        domain = domain.encode("idna").decode("ascii")
    return f"{key_of(local.lower())}@{key_of(domain)}"[-LONGEST_KEY:]


def _older_history(clock: FakeClock, *senders: str) -> bytes:
    now_ns = clock.boottime_ns()
    records: list[Record] = [
        Reserved(now_ns + n, now_ns + TRANSACTION_NS, 1, 1, 0, (Share("sender", _as_it_was(each), 1, 1),))
        for n, each in enumerate(senders)
    ]
    at = At(now_ns, clock.wall_ns(), clock.wall_ns())
    return header(clock.boot_id()) + group(at, records)


@pytest.mark.parametrize("spellings", SENDERS)
def test_a_history_of_an_older_version_frees_no_slot(
    spellings: list[str], memory: MemoryDisk, clock: FakeClock
) -> None:
    for spelling in spellings:
        clock.advance(SECOND_NS)
        memory.put(str(PATH), _older_history(clock, *spellings[:2]))
        clock.advance(SECOND_NS)
        account = throttle(PATH, memory, clock, [messages(3, seconds=3600, for_each="sender")])
        assert _granted(account, *[_request(spelling)] * 3) == 1
        # And so after it was written anew, and read again.
        again = throttle(PATH, memory, clock, [messages(3, seconds=3600, for_each="sender")])
        assert _granted(again, *[_request(each) for each in spellings]) == 0
        assert _granted(again, *[_request("other@h.example")] * 4) == 3


def test_a_cut_old_key_of_a_quoted_sender_counts_for_all(memory: MemoryDisk, clock: FakeClock) -> None:
    long = '"' + "a" * 60 + '"@' + "b" * 60 + ".example"
    memory.put(str(PATH), _older_history(clock, long, long))
    clock.advance(SECOND_NS)
    account = throttle(PATH, memory, clock, [messages(3, seconds=3600, for_each="sender")])

    assert _granted(account, *[_request(long)] * 3) == 1
    assert _granted(account, *[_request("other@h.example")] * 3) == 1


@pytest.mark.parametrize("key", ["%c3@h.example", "%zz@h.example", "%", "%25c3@h.example"])
def test_a_key_that_is_no_text_stays_what_it_is(key: str) -> None:
    once = comparable_key("sender", key)

    assert comparable_key("sender", once) == once
    assert (once == key) == ("zz" not in key)


@given(ADDRESSES)
def test_a_key_that_was_written_is_read_as_it_is(address: str) -> None:
    sender, domain, _, _ = keys_of(address, "local", "")
    for key, kind in ((sender, "sender"), (domain, "sender_domain"), (domain, "recipient_domain")):
        assert comparable_key(kind, key) == key
    assert not {'"', "\\"} & set(sender)


@given(ADDRESSES.filter(lambda address: is_valid_address(address, smtputf8=True)))
def test_an_old_key_is_read_as_the_key_of_its_sender(address: str) -> None:
    try:
        old = _as_it_was(address)
    except UnicodeError:
        return
    read = comparable_key("sender", old)
    if len(old) < LONGEST_KEY:
        assert read == keys_of(address, "local", "")[0]
    else:
        assert read in (old, UNKNOWN)
