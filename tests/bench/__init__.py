"""How fast, beside others on the same machine: `make bench`.

The relay and Postfix take mail from smtp-source, store it durably, and hand it to smtp-sink; the rounds
alternate, so that what else the machine does is shared.  Not a test: numbers, not
judgements.

contenders     Postfix and the relay, set up alike
measure        one round, and what the rounds say together
decisions      of the throttle a second
hosts          the same, of hosts on one PostgreSQL
cost           processor time a message
restart        how soon a relay with a long queue takes mail and relays again
cleaning       how long a settlement waits while a log is cleaned
disk           an ext4 of their own
__main__       the command and its tables

By itself `make bench` measures decisions and mail; each of the others is `--only`:

    make bench OPTIONS="--rounds 5"
    make bench OPTIONS="--only age --messages 5000 --rounds 12 --processes 1"
    make bench OPTIONS="--only hosts"
    make bench OPTIONS="--only mail --engines maildir postgresql --processes 1"
    make bench OPTIONS="--only restart --messages 200000"
    make bench OPTIONS="--only cleaning --messages 60000"

`filling` is of restart, cleaning and hosts.
"""
