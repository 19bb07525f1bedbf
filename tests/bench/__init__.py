"""`make bench`: how fast the relay is, beside Postfix on the same machine.

The relay and Postfix take mail from smtp-source, store it durably, and send it to smtp-sink.  Their rounds
alternate, so that other load on the machine slows both.  It prints figures and judges nothing.

mail           Postfix and the relay, set up alike; one round, and tables of all rounds
decisions      decisions of the throttle a second
hosts          the same, by hosts that share one PostgreSQL
restart        how soon a relay with a long queue takes mail and relays again
cleaning       how long a settlement waits while a log is cleaned
disk           an ext4 for the contenders alone
filling        spools, mail and databases for the benchmarks
__main__       the command and its tables

By itself `make bench` measures decisions and mail; `--only` selects each of the others:

    make bench OPTIONS="--rounds 5"
    make bench OPTIONS="--only age --messages 5000 --rounds 12 --processes 1"
    make bench OPTIONS="--only hosts"
    make bench OPTIONS="--only mail --engines maildir postgresql --processes 1"
    make bench OPTIONS="--only restart --messages 200000"
    make bench OPTIONS="--only cleaning --messages 60000"
"""
