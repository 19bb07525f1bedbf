"""What the relay does by a verdict: pause a sender, stop at a refused account, go on when somebody acted."""

import itertools
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.control.operations import OK
from relay.queue.queued import State
from relay.status.snapshot import UpstreamState
from tests.fakes.smarthost import Script, Smarthost, Turn
from tests.unit.sender.in_process_relay import Relay, hurry, policy_of, virtual_clock


def with_password(folder: Path, password: str) -> str:
    # In one step: the relay looks at it each second, and half a password is another one.
    secret = folder / "password"
    new = folder / "password.new"
    new.write_text(password)
    new.chmod(0o600)
    new.replace(secret)
    return f", auth: {{user: mjd, password_file: {secret}}}"


async def test_refused_credentials_stop_until_the_password_is_another(tmp_path: Path) -> None:
    async with (
        Smarthost(accounts={"mjd": "right"}) as host,
        Relay(policy_of(tmp_path, host.port, with_password(tmp_path, "wrong"))) as relay,
    ):
        queue_id = relay.accept()
        await relay.until(lambda: relay.account.pausing.state.why)

        assert relay.watch.snapshot().upstreams[0].state is UpstreamState.STOPPED
        queued = relay.queued(queue_id)
        assert queued is not None
        assert queued.state is State.WAITING

        with_password(tmp_path, "right")
        await relay.until_empty()
        assert len([command for command in host.commands if command.startswith("AUTH")]) == 2
    log = relay.log.getvalue()
    assert "error: upstream isp stopped: 535" in log
    assert "upstream isp resumed" in log


async def test_an_edit_of_verdicts_judges_anew_and_ends_a_stop(tmp_path: Path) -> None:
    async with (
        Smarthost(Script(rcpt="554 5.7.1 Relay access denied")) as host,
        Relay(policy_of(tmp_path, host.port)) as relay,
    ):
        relay.accept()
        await relay.until(lambda: relay.account.pausing.state.is_refused)

        rule = '{phase: rcpt, text: "relay access denied", verdict: bounce recipient}'
        await relay.sender.apply(policy_of(tmp_path, host.port, f", verdicts: [{rule}]"))
        await relay.until_empty()

        assert relay.sender.totals.bounced == 2  # the message, and the report of it


@pytest.mark.parametrize(
    ("said", "gaps_s"),
    [
        ("421 4.3.2 busy", [15, 30, 60, 120]),
        ("450 4.7.1 rate limit exceeded, try again in 2 hours", [7200, 7200]),
        ("552 Your account has been suspended. Please contact us to reactivate", [3600, 3600, 3600]),
    ],
)
async def test_an_upstream_that_refuses_us_is_asked_again_in_its_time_by_one_message(
    tmp_path: Path, said: str, gaps_s: list[int]
) -> None:
    asked_ns: list[int] = []

    def mail(_: str) -> Turn:
        asked_ns.append(virtual_clock().boottime_ns())
        return said

    async with Smarthost(Script(mail=mail)) as host, Relay(policy_of(tmp_path, host.port)) as relay:
        relay.accept(sender="")
        await relay.until(lambda: asked_ns and relay.account.in_flight == 0)
        hurry(step_s := max(1, gaps_s[0] // 100))
        for number in range(5):
            relay.accept(sender=f"s{number}@here.example")
        await relay.until(lambda: len(asked_ns) > len(gaps_s) and relay.account.in_flight == 0)
        gaps_ns = [later - before for before, later in itertools.pairwise(asked_ns)]
        assert all(
            gap_s * SECOND_NS <= gap_ns <= (gap_s + 2 * step_s) * SECOND_NS
            for gap_s, gap_ns in zip(gaps_s, gaps_ns, strict=True)
        )

        # Somebody acted: it begins anew.
        assert await relay.operator.resume("isp") == OK
        await relay.until(lambda: len(asked_ns) > len(gaps_s) + 2)
        assert asked_ns[-1] - asked_ns[-2] <= (gaps_s[0] + 2 * step_s) * SECOND_NS
        assert len(relay.sender.queue) == 6
