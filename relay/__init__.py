"""The smarthost that paces: an MTA hands over its mail; it leaves through your account, never too fast.

client ─SMTP→ listener ─250 once durable→ spool ─trigger→ scheduler ─may it go?→ throttle
                                            ▲                                      │ reserved
                                            └── deferred · report ── settlement ← upstream

address     what an address is (RFC 5321), bytes in = bytes out
envelope    who sends to whom
reply       what an SMTP server says, exactly
echo        what a client said, taken out of a reply
verdict     what that means for us: a table
outcome     what one attempt came to
phrases     words that a rule looks for in a reply
shield      which refusals are doubted, because they look like one of us
offers      what an upstream is believed not to offer
unproven    which refusals are believed only when they are said again
blame       which refusals about us are evidently about one message, or one sender
settlement  what becomes of a message after it
scheduler   which message next
lanes       the order of those that may go: shares, turns, patience
sorting     which lane a message is in
resting     which senders wait because the upstream refuses them
places      where those wait that only something of their own keeps back
doubts      who goes last while the upstream is in doubt
queued      a message as the queue in memory has it
report      what a sender is told when mail failed or is late
eta         when each message that waits will have gone, and what holds it
eta_gauge   a limit in that estimate
limit       N of a unit in any T, to whoever counts, compares or foresees
outlook     what the estimate is made from
lateness    whether a sender is told that mail is late
learning    what a refusal for having sent too much says of our limits
caution     how little goes first after a refusal for too much
pauses      when an upstream was paused, which is no message's age
lack        what we may be out of for a while
clock       what the time is
spans       lengths of time as people write them
policy/     policy.yaml, checked
spool/      on disk: every accepted message
throttle/   never more than N in any T
listener/   SMTP in
upstream/   SMTP out
practice/   a smarthost to practise on, which cuts off whoever exceeds its limit
service/    where the rooms meet: the heart, processes, live policy, metrics
cli/        the command line
"""

__version__ = "0.1.0"
