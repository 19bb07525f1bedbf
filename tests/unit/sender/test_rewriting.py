"""Mail that a route has sent by another sender: what the upstream sees, and what stays ours."""

from pathlib import Path

import pytest

from relay.policy.model import Policy
from tests.fakes.smarthost import DEFAULT, Script, Smarthost
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of

REWRITTEN = (
    b"From: <news@example.com>\r\nX-Original-From: a@here.example\r\nReply-To: a@here.example\r\n"
    b"Subject: hello\r\n\r\nhello\r\n.dotted\r\n"
)


def policy(folder: Path, port: int, *routes: str, keys: str = "") -> Policy:
    lines = "\n".join(f"  - {route}" for route in routes or ("{upstreams: [isp]}",))
    retry = "retry: {min: 50ms, max: 100ms, lifetime: 1d}"
    return policy_of(folder, port, keys, f"{retry}\nroutes:\n{lines}")


FIXED = "{upstreams: [isp], rewrite: news@example.com}"
DOMAIN = "{upstreams: [isp], rewrite: '@example.com'}"


@pytest.mark.parametrize("size", [300_000, 1_000_000])
async def test_long_content_is_streamed_behind_its_rewritten_front(tmp_path: Path, size: int) -> None:
    line = b"x" * 70 + b"\r\n"
    long = CONTENT + line * (size // len(line))
    async with Smarthost() as host, Relay(policy(tmp_path, host.port, FIXED)) as relay:
        relay.accept(content=long)
        await relay.until_empty()

    (relayed,) = host.relayed
    assert relayed.content == REWRITTEN + long[len(CONTENT) :]
    assert f"SIZE={len(relayed.content)}" in relayed.parameters


async def test_an_edit_changes_what_is_queued(tmp_path: Path) -> None:
    is_over: list[bool] = []
    script = Script(mail=lambda _: DEFAULT if is_over else "450 4.7.1 not now")
    async with Smarthost(script) as host, Relay(policy(tmp_path, host.port)) as relay:
        queue_id = relay.accept()
        await relay.until(lambda: (queued := relay.queued(queue_id)) and queued.reason)
        edited = policy(tmp_path, host.port, DOMAIN)
        await relay.sender.apply(edited)
        relay.watch.policy = edited
        await relay.until(lambda: (queued := relay.queued(queue_id)) and queued.part.rewriting)
        is_over.append(True)
        await relay.until_empty()

    assert host.relayed[-1].reverse_path == "a@example.com"
    assert b"From: <a@example.com>\r\nX-Original-From: a@here.example" in host.relayed[-1].content


async def test_each_part_goes_by_its_own_route(tmp_path: Path) -> None:
    plain = "{recipient_domain: inside.example, upstreams: [isp]}"
    async with Smarthost() as host, Relay(policy(tmp_path, host.port, plain, DOMAIN)) as relay:
        relay.accept("b@inside.example", "c@outside.example")
        await relay.until_empty()

    assert {each.recipients[0]: each.reverse_path for each in host.relayed} == {
        "b@inside.example": "a@here.example",
        "c@outside.example": "a@example.com",
    }


async def test_a_limit_for_each_sender_is_for_the_one_sent(tmp_path: Path) -> None:
    keys = ", limits: [{messages: 2, per: 1h, for_each: sender}]"
    async with Smarthost() as host, Relay(policy(tmp_path, host.port, FIXED, keys=keys)) as relay:
        for number in range(4):
            relay.accept(sender=f"u{number}@here.example")
        await relay.until(lambda: "limit" in _reasons(relay))

    assert len(host.relayed) == 2


def _reasons(relay: Relay) -> str:
    return " ".join(queued.reason for queued in relay.sender.queue)
