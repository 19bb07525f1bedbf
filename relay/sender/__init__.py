"""Where queue, spool, throttle and upstream meet: from a message on disk to its end.

dispatcher        take the next messages, have ready connections, reserve slots durably
delivery          send on a ready connection, judge, settle
settling          what an attempt came to: written down, told, moved on in the queue
sender            the holder of the spool's lock, the queue, a dispatcher for each upstream
arrivals          mail into the queue: at a start, then as listeners accept it
upstreams         a dispatcher for each upstream of the policy: made, edited, retired
upstream_health   whether an upstream is used: carries out `relay.verdicts.health`
connections       connections opened with their slots, ready before a message's slot is reserved
accounts          what a connection is opened with, and whether its password changed
known_offers      what an upstream is known to offer; lowered_limits: what refusals taught of its limits
state_file        what of this a restart goes on with
reports           a report or warning as a message; report_limit: how many go in an hour
late_mail         senders of late mail are warned, once a message
spool_thread      the spool, off the event loop; group_commit: what waits for the disk goes together
throttle_thread   the throttle of one upstream, off the event loop
"""
