"""The smarthost that paces: an MTA hands over its mail; it leaves through your account, never too fast.

client ─SMTP→ listener ─250 once durable→ spool ─trigger→ scheduler ─may it go?→ throttle
                                            ▲                                      │ reserved
                                            └── deferred · report ── settling ← upstream

mail/       what a message is
smtp/       the protocol, without I/O
verdicts/   what a reply means, and what refusals add up to
queue/      which message next
policy/     policy.yaml, checked
spool/      on disk: every accepted message
throttle/   never more than N in any T
listener/   SMTP in
upstream/   SMTP out
practice/   an upstream to practise on, which cuts off whoever exceeds its limit
telemetry/  events, metrics, outcomes (the recent past)
hooks/      who is told of bounces and pauses
sender/     where queue, spool, throttle and upstream meet
status/     what can be seen
control/    the operator's verbs
daemon/     processes, assembly, reload, systemd
submission/ mail that a program of this host hands over without SMTP of its own
cli/        the command line

Imports point up this list; `tests/unit/test_layout.py` holds every law of the layout.
"""

__version__ = "1.0.0"
