"""No fault shows a password that stands in the wrong place of a policy, as a key or as a value."""

import base64
import copy
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from hypothesis import assume, example, given
from hypothesis import strategies as st

from relay.policy.source import PolicyError, read_policy

Steps = tuple[int | str, ...]

PIECE = 6
"""This many characters of a password in a row are a leak."""
WHOLE_POLICY: dict[str, Any] = yaml.safe_load("""
spool: ./spool
listen:
  - {address: '127.0.0.1:2525', clients: [127.0.0.0/8], users_file: users, certificate: c, max_size: 50M}
hostname: mail.here.example
upstreams:
  isp:
    provider: gmail
    host: smtp.example.net
    history: ./history
    auth: {user: mjd, password_env: RELAY_TEST_UNSET, mechanism: plain}
    limits: [{messages: 8, per: 1m, for_each: sender}]
    verdicts: [{code: 5xx, text: quota, verdict: pause, wait: 1h}]
  two: {host: b.example.net, limits: [], auth: {user: u, password_file: f}}
  three: {host: c.example.net, limits: [], auth: {user: u, password_credential: c}}
lanes:
  bulk: {sender: ['@lists.example'], header: {List-Id: ['*']}, client: [10.0.0.0/8], share: 40}
notify: [{url: 'https://hooks.example.net/relay', secret_file: s, events: [bounced]}, {command: [tell]}]
""")
NAMES = {("upstreams",), ("lanes",)}
"""The names below these keys are public: they label metrics."""


def _places(value: object, steps: Steps = ()) -> Iterator[Steps]:
    yield steps
    children: Any = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    for step, child in children:
        yield from _places(child, (*steps, step))


PLACES = sorted(_places(WHOLE_POLICY), key=str)
PASSWORDS = st.one_of(
    st.text("abcdefghijkmnopqrstuvwxyz0123456789_-", min_size=8, max_size=20),
    st.text("ABCdefghijkmn0123456789!$%&*:{}[]#'\"\\@/. é", min_size=8, max_size=20),
    st.text("Qz81!kV", min_size=8).map(lambda password: f"Mjd-7x!:{password}@Vw9z.Qk7p"),
    st.integers(10**8, 10**18).map(str),
).filter(lambda password: all(_is_unlike_a_word(piece) for piece in _pieces(password)))


def _pieces(password: str) -> Iterator[str]:
    for start in range(len(password) - PIECE + 1):
        yield password[start : start + PIECE]


def _is_unlike_a_word(piece: str) -> bool:
    """Return whether a piece is too odd to be in the output by chance."""
    return len(set(piece)) > 3 and any(c.isdigit() for c in piece)


def _at(policy: Any, place: Steps) -> Any:
    for step in place:
        policy = policy[step]
    return policy


def _as_value(policy: Any, place: Steps, password: object) -> str:
    if place:
        _at(policy, place[:-1])[place[-1]] = password
    return json.dumps(policy if place else password, ensure_ascii=False)


def _twice_as_key(policy: Any, place: Steps, password: str) -> str:
    """Put the password in place of a key, with its value, and add it again as a duplicate key."""
    parent = _at(policy, place[:-1])
    if not place or not isinstance(parent, dict):
        return _as_value(policy, place, password)
    # A password that is a valid name of an upstream or a lane is public.
    assume(place[:-1] not in NAMES or not re.fullmatch("[a-z0-9_-]{1,64}", password))
    parent[password] = parent.pop(place[-1])
    quoted = json.dumps(password, ensure_ascii=False)
    return json.dumps(policy, ensure_ascii=False).replace(f"{quoted}: ", f"{quoted}: 0, {quoted}: ", 1)


BREAKS = st.sampled_from(["", "\n", *"*&!'\"%{}]\t\0\x07@\\", ": ", "<<: ", "---\n"])


def _leaks(password: str, told: str) -> list[str]:
    forms = {base64.b64encode(password.encode()).decode().rstrip("=")}
    for piece in _pieces(password):
        forms |= {piece, repr(piece)[1:-1], json.dumps(piece)[1:-1]}
    return sorted(form for form in forms if form in told)


@given(
    st.sampled_from(PLACES), st.sampled_from([_as_value, _twice_as_key]), PASSWORDS, BREAKS, st.floats(0, 1)
)
@example(("upstreams", "isp", "auth", "mechanism"), _as_value, "hunter2-hunter3", "", 0)
@example(("upstreams", "isp", "host"), _as_value, "mjd:hunter2-hunter3@Vw9z.Qk7p", "", 0)
@example(("upstreams", "two", "auth", "password_file"), _as_value, "hunter2-hunter3", "", 0)
@example(("upstreams", "isp", "auth", "user"), _twice_as_key, "hunter2-hunter3", "", 0)
@example(("listen", 0, "users_file"), _as_value, "hunter2-hunter3", "", 0)
def test_no_fault_shows_a_misplaced_password(
    place: Steps, way: Callable[[Any, Steps, str], str], password: str, piece: str, where: float
) -> None:
    text = way(copy.deepcopy(WHOLE_POLICY), place, password)
    at = int(where * len(text))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "p.yaml")
        path.write_text(text[:at] + piece + text[at:], encoding="utf-8")
        told = ""
        try:
            read_policy(path)
        except PolicyError as error:
            told = repr(error) + str(error)
    assert _leaks(password, told) == []
    assert not re.search("pydantic|relay.policy|Input should|Value error", told)
