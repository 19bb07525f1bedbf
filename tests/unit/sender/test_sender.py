"""The flow from spool to upstream, with every part real but the smarthost, which plays its script."""

import json
import re
from pathlib import Path

from tests.fakes.smarthost import Script, Smarthost, turns
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of


async def test_a_damaged_message_is_set_aside_and_the_rest_goes_on(tmp_path: Path) -> None:
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port)
        relay = Relay(policy)
        damaged = relay.accept("damaged@x.example")
        path = policy.spool / "new" / damaged
        path.write_bytes(re.sub(rb"hello\r\n\.", rb"jello\r\n.", path.read_bytes()))
        async with relay:
            relay.accept("whole@x.example")
            await relay.until(lambda: host.relayed and len(relay.sender.queue) == 0)

            assert [r.recipients for r in host.relayed] == [["whole@x.example"]]
            assert [path.name for path in (policy.spool / "corrupt").iterdir()] == [damaged]
            assert relay.told == ["the content does not match its checksum"]


async def test_what_became_of_a_recipient_is_told_with_its_message_id(tmp_path: Path) -> None:
    script = Script(rcpt=turns("250 ok", "550 5.1.1 no"))
    async with Smarthost(script) as host, Relay(policy_of(tmp_path, host.port), style="json") as relay:
        relay.accept("b@x.example", "c@x.example", content=b"Message-Id:\r\n <1@here.example>\r\n" + CONTENT)
        await relay.until_empty()
        relay.events.flush()

    told = [json.loads(line) for line in relay.log.getvalue().splitlines()]
    ends = {event["recipient"]: event for event in told if event["event"] == "delivery"}
    assert [ends[each]["message_id"] for each in ("b@x.example", "c@x.example")] == ["<1@here.example>"] * 2
    assert ends["c@x.example"]["text"] == "550 5.1.1 no"
