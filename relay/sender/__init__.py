"""Where queue, spool, throttle and upstream meet: from a message on disk to its end.

account           the loop of one upstream account: take, reserve durably, send, settle
loading           taken messages, read from the spool; carrier: one transaction on its connection
consequences      what came of it, judged and settled; known_upstream: by what
attempt           some recipients of a message, on a connection
settling          what an attempt came to: written down, told, moved on in the queue
host              clock, disk, threads and trigger, as ports
sender            the holder of the spool's lock, the queue, an account for each upstream
arrivals          mail into the queue: at a start, then as listeners accept it; and from line to line
upstreams         an account for each upstream of the policy: made, edited, seen, retired
upstream_health   whether an upstream is used: the state of its account (`relay.verdicts.account`)
connections       connections opened with their slots, ready before a message's slot is reserved
accounts          what a connection is opened with, and whether its password changed
oauth/            access tokens and the refresh token behind them; probe/: one login by an operator's word
tls/              the certificates that upstreams are shown
known_offers      what an upstream is known to offer
state_file        what of this a restart goes on with
reports           a report or warning as a message; report_limit: how many go in an hour
late_mail         senders of late mail are warned, once a message
spool_thread      the spool, off the event loop; group_commit: its thread, and what shares one call
throttle_thread   the throttle of one upstream, off the event loop
"""
