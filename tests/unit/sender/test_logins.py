"""Through a whole sender: what a login sends, and what of its replies anybody gets to see."""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relay.cli.probe import probed
from relay.policy.model import Policy
from relay.status import page
from relay.status.snapshot import to_json
from tests.fakes.smarthost import Script, Smarthost, Turn
from tests.unit.sender.in_process_relay import Relay, policy_of

USER = "news@example.com"
PASSWORD = "correct horse battery staple, and 90 characters more: " + "".join(
    chr(ord("a") + (index * index + index // 7) % 26) for index in range(66)
)
PIECE = 6
"""So many characters in a row of a secret are a leak."""


def policy_with(tmp_path: Path, port: int, auth: str) -> Policy:
    return policy_of(tmp_path, port, f", auth: {{user: {USER}, {auth}}}")


def with_password(tmp_path: Path, port: int, mechanism: str = "auto", password: str = PASSWORD) -> Policy:
    path = tmp_path / "password"
    path.touch(0o600)
    path.write_text(password)
    return policy_with(tmp_path, port, f"password_file: password, mechanism: {mechanism}")


def in_lines(code: str, argument: str) -> Turn:
    pieces = [argument[at : at + 20] for at in range(0, len(argument), 20)]
    return "".join(f"{code}-{piece}\r\n" for piece in pieces).encode() + f"{code} what?\r\n".encode()


def without_code(argument: str) -> Turn:
    return f"what is AUTH {argument}?\r\n".encode()


@pytest.mark.parametrize(
    "said",
    [
        lambda line: in_lines("535", line),
        lambda line: in_lines("421", line),
        lambda line: in_lines("334", line),
        without_code,
        lambda line: f"535 5.7.8 no\r\n535 {line}\r\n".encode(),
    ],
    ids=["refusal", "421", "challenge", "no code", "two replies"],
)
@pytest.mark.parametrize("mechanism", ["plain", "login"])
async def test_of_a_reply_to_auth_only_its_codes_are_seen(
    tmp_path: Path, mechanism: str, said: Callable[[str], Turn]
) -> None:
    texts: list[str] = []
    async with Smarthost(Script(auth=said), accounts={USER: PASSWORD}) as host:
        policy = with_password(tmp_path, host.port, mechanism)
        async with Relay(policy) as relay:
            relay.accept()
            await relay.until(lambda: relay.account.pausing.state.why)
            snapshot = relay.watch.snapshot()
            relay.events.flush()
            told = [relay.log.getvalue(), json.dumps(to_json(snapshot)), page.render(snapshot)]
        await probed(policy, "isp", texts.append)

    told += [_read(Path(f"{policy.history_path('isp')}.pause")), *texts]
    for secret in _forms(PASSWORD):
        assert not [piece for piece in _pieces(secret) for text in told if piece in text]


def _forms(password: str) -> Iterator[str]:
    yield password
    yield base64.b64encode(password.encode()).decode()
    yield base64.b64encode(f"\0{USER}\0{password}".encode()).decode()[4 * len(USER) // 3 :]


def _pieces(secret: str) -> Iterator[str]:
    yield from (secret[at : at + PIECE] for at in range(len(secret) - PIECE))


def _read(path: Path) -> str:
    return path.read_text()
