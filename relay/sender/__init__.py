"""Where queue, spool, throttle and upstream meet: from a message on disk to its end.

sender            the holder of the spool's lock, the queue, an account for each upstream
arrivals          mail into the queue: at a start, then as listeners accept it; and from line to line
upstreams         an account for each upstream of the policy: made, edited, seen, retired
account           the loop of one upstream account: take, have connections, reserve durably, send
transactions      messages read, sent on their connections, judged and settled
attempt           what a transaction is about; and what an upstream is known to offer
pausing           whether the upstream is used; state_file, account_row: what of this a restart goes on with
connections       connections opened with their slots, ready before a message's slot is reserved
logins            what a connection logs in with and shows; refresh_token_file: a token on disk
settling          what an attempt came to: written down, told, moved on in the queue
reports           reports and warnings: as messages, which are owed, and how many go in an hour
spool_thread      the spool, off the event loop
throttle_thread   the throttle of one upstream, off the event loop
host              clock, disk, threads and trigger, as ports; group commit
"""
