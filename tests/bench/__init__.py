"""How fast, beside others on the same machine: `make bench`.

The relay and Postfix take mail from smtp-source, store it durably, and hand it to smtp-sink; the rounds
alternate, so that what else the machine does is shared.  Not a test: numbers, not
judgements.

calls        what a message costs the sender's loop, in calls: `python -m tests.bench.calls`
decisions    the throttle beside other rate limiters: decisions a second
cost         processor time a message, beside the floor of the loop (`--only cost`)
contenders   Postfix and the relay, set up alike
floods       how long a client waits while strangers flood, beside peace (`--only floods`)
measure      one round, and what the rounds say together
__main__     the command and its tables
"""
