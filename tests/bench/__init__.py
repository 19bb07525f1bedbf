"""How fast, beside others on the same machine: `make bench`.

The relay and Postfix take mail from smtp-source, store it durably, and hand it to smtp-sink; the rounds
alternate, so that what else the machine does is shared.  Not a test: numbers, not
judgements.

By `make bench`:

contenders     Postfix and the relay, set up alike
cost           processor time a message, beside the floor of the loop (`--only cost`)
decisions      the throttle beside other rate limiters: decisions a second
measure        one round, and what the rounds say together
disk           an ext4 of their own
__main__       the command and its tables

Alone, by `python -m tests.bench.restart`:

restart        how soon a relay with a long queue takes mail and relays again

`filling` is of restart; tests.system.floods, by `--only floods`, tells how long a client waits in one.
"""
