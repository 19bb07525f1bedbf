from dataclasses import replace

from tests.unit.mail.test_report import blocks, delay, fields, warning


def test_a_warning_without_an_attempt_names_none() -> None:
    """RFC 3464, 2.3.7: the date of the last attempt, where there was one."""
    waiting = replace(delay(), remote=None, status="4.4.5", diagnostic="it waits for its turn")

    _, recipient = map(fields, blocks(warning(waiting)))

    assert recipient == {
        "Final-Recipient": "rfc822; alice@example.com",
        "Action": "delayed",
        "Status": "4.4.5",
        "Diagnostic-Code": "X-relay; it waits for its turn",
        "Will-Retry-Until": "Fri, 06 Mar 2026 12:00:05 +0000",
    }
    assert "Last-Attempt-Date" in fields(blocks(warning(delay()))[1])
