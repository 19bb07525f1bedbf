"""System tests: the relay as a program, between real peers that each run in a private instance.

No test here imports the relay: tests reach it by SMTP, its command line, HTTP and signals.

namespaces   hosts on this machine with a network and a clock of their own
postfix      an MTA in front of the relay, or an upstream behind it (SASL by Dovecot, TLS, a mailbox)
smtp_tools   smtp-source, smtp-sink and swaks
relay        the relay itself, as an operator runs it
strict_smarthost  an upstream in the test's process, which judges and records every transaction
witness      that record, counted by plain arithmetic
ordeal       a relay between clients and strict upstreams, and what happens to all three meanwhile
feeder       clients that keep handing mail over, whatever happens to the relay
warm         the interpreter that has imported the relay already, and what is forked from it
processes    halts, counts and measures processes by their pid

Each peer has `why_missing()`, which returns why it cannot run here, or None.  `demand` skips
a test for that reason, or fails it under `RELAY_REQUIRE_PEERS=1`.  Every peer listens on
loopback only, keeps everything in a folder of its own, and is stopped by its own pid.
"""
