"""Real peers, started privately: what the relay has to live with, and not our idea of it.

Nothing here imports the relay: it is met by SMTP, at its command line, by HTTP and by signals.

namespaces   hosts of this machine with a network and a clock of their own
apart        a layer of its own over this machine, for a package that conflicts with Postfix
fronts       Exim, OpenSMTPD, sendmail, nullmailer and dma, each in one of its own; msmtp and esmtp
snippets     the settings of docs/clients.md, as the tests use them
postfix      an MTA in front of the relay, or an upstream behind it (SASL, TLS, a mailbox)
dovecot      what checks the logins of such an upstream: passwords, or access tokens
ledger       what such an upstream took, by its own clock
accounts     accounts at such upstreams, as a policy writes them
smtp_tools   smtp-source, smtp-sink and swaks
prometheus   a Prometheus that scrapes, and promtool that judges
relay        the relay itself, as an operator runs it
strict_smarthost  an upstream beside the test, with every transaction on record
witness      what it saw, counted by plain arithmetic
feeder       clients that keep handing mail over, whatever happens to the relay
warm         relays and verbs, forked from an interpreter that has imported them already
processes    other people's processes: halted, counted, measured
container    the image, built from a Debian of our own, and run as its configuration says
certificate  a certificate for loopback, made by openssl

Each peer has `why_missing()`; `demand` skips a test for that reason, or fails it where
`RELAY_REQUIRE_PEERS=1` says that nothing may be missing.  Every peer listens on loopback
only, keeps everything in a folder of its own, and is stopped by its own pid.
"""
