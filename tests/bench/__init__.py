"""How fast, beside others on the same machine: `make bench`.

The relay and Postfix take mail from smtp-source, store it durably, and hand it to smtp-sink; the rounds
alternate, so that what else the machine does is shared.  Not a test: numbers, not
judgements.

By `make bench`:

contenders     Postfix and the relay, set up alike
cost           processor time a message, beside the floor of the loop (`--only cost`)
decisions      the throttle beside other rate limiters: decisions a second
floods         how long a client waits while strangers flood, beside peace (`--only floods`)
measure        one round, and what the rounds say together
disk           an ext4 of their own
__main__       the command and its tables

Each alone, by `python -m tests.bench.` and its name:

amplification  what a spool writes for each byte that it took
calls          what a message costs the sender's loop, in calls
latency        what the relay adds to a message below the limit
long_queue     how long the loop stands still in edits and verbs on a long queue
looks          what looks at a long queue cost
memory         what a queued message costs in memory, and in time
restart        how soon a relay with a long queue takes mail and relays again

For all: `filling` (mail in the spool), `stalls` (how long the loop stood still).
"""
