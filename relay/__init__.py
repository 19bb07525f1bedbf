"""relay, an SMTP smarthost: it takes mail from an MTA and sends it through your account, within its limits.

client ─SMTP→ listener ─250 once durable→ spool ─trigger→ queue ─may it go?→ throttle
                                            ▲                                  │ reserved
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
practice/   an upstream to practise on, which cuts off a client that exceeds its limit
telemetry/  events, metrics, outcomes (the recent past)
hooks/      notices of bounces and pauses, by a URL or a program
sender/     connects queue, spool, throttle and upstream
status/     the snapshot, the page, `/status.json` and the estimates
control/    the operator's verbs
daemon/     processes, assembly, reload, systemd
submission/ mail of programs on this host, by sendmail(1) or out of a maildir
cli/        the command line

Packages import only from above in this list; `tests/unit/test_layout.py` holds every law of the layout.
"""

__version__ = "1.0.0"
