"""What other relays were reported to stumble over at an upstream: replies that are odd, and within RFC 5321.

The law: each recipient is relayed once, byte for byte, at once, and the account goes on.
"""

from pathlib import Path

import pytest

from tests.fakes.smarthost import CLOSE, Script, Smarthost, turns
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of

GBK = "用户不存在".encode("gbk")
ODD = {
    "a greeting of many lines": Script(connect=b"220-fake.example\r\n220-no spam\r\n220 ready\r\n"),
    "a greeting without a text": Script(connect=b"220\r\n"),
    "a greeting in GBK": Script(connect=b"220 " + GBK + b"\r\n"),
    "EHLO of the name alone": Script(ehlo=b"250 fake.example\r\n"),
    "EHLO without a text": Script(ehlo=b"250\r\n"),
    "EHLO of 200 words": Script(
        ehlo=b"".join(b"250-X%d a=b =\r\n" % n for n in range(200)) + b"250 8BITMIME\r\n"
    ),
    "EHLO with words that are none": Script(
        ehlo=b"250-fake.example\r\n250-\r\n250-AUTH\r\n250-AUTH=\r\n250-SIZE\r\n250-SIZE=1\r\n250-SIZE 0\r\n"
        b"250-LIMITS\r\n250-250 DSN\r\n250-" + GBK + b"\r\n250 8bitmime\r\n"
    ),
    "codes alone": Script(mail=b"250\r\n", rcpt=b"250\r\n", data=b"354\r\n", eod=b"250\r\n"),
    "codes and a blank": Script(mail=b"250 \r\n", rcpt=b"250 \r\n", data=b"354 \r\n", eod=b"250 \r\n"),
    "recipients taken by 251 and 252": Script(rcpt=turns("251 will forward", "252 will try")),
    "354 of many lines": Script(data=b"354-2.0.0 go\r\n354-on\r\n354 .\r\n"),
    "250 of many lines": Script(eod=b"250-2.0.0 ok\r\n250-id=1\r\n250 " + GBK + b"\r\n"),
    "250 that speaks of a refusal": Script(eod="250 5.7.1 rejected: 550 quota exceeded"),
    "RSET not known": Script(rcpt=turns("450 4.2.1 later", "450 4.2.1 later"), rset="502 5.5.1 what?"),
    "a wrong 221": Script(quit="500 5.5.1 what?"),
    "closed behind the last 250": Script(eod=["250 2.0.0 ok", CLOSE]),
    "421 behind the last 250": Script(eod=["250 2.0.0 ok", "421 4.4.2 idle", CLOSE]),
    "552 where 452 is meant": Script(rcpt=turns("250 ok", "552 5.5.3 Maximum limit of 1 recipients reached")),
}


@pytest.mark.parametrize("script", list(ODD.values()), ids=list(ODD))
async def test_odd_replies_relay_once_byte_for_byte(tmp_path: Path, script: Script) -> None:
    wanted = {"b@there.example", "c@there.example"}
    async with Smarthost(script) as host, Relay(policy_of(tmp_path, host.port, ", idle: 50ms")) as relay:
        relay.accept(*wanted)
        relay.accept(*wanted)
        await relay.until_empty()

        assert sorted(each for relayed in host.relayed for each in relayed.recipients) == sorted(
            [*wanted] * 2
        )
        assert {relayed.content for relayed in host.relayed} == {CONTENT}
        assert {relayed.reverse_path for relayed in host.relayed} == {"a@here.example"}
        totals = relay.sender.totals
        assert (totals.relayed, totals.bounced) == (4, 0)
        relay.events.flush()
        assert "paused" not in relay.log.getvalue()
