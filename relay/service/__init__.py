"""Where the rooms meet: the only place that sees both the disk and the network.

The flow:
daemon            puts everything together, runs until told to stop; loops, notify
listening         taking mail, here or in listener processes (listener_process, child)
priority          who goes first where processors are busy
intake            from a listener to the spool, many at a time (batch)
sender            the queue in memory
upstreams         a heart for each upstream of the policy; accounts, opener: its connections
heart             take the next message, reserve, send, settle
relaying          one message on one connection, its slot reserved, to its settlement
ready, pause      connections to send on; whether the upstream is used at all
learning          what refusals taught of our limits, and what was lowered because of it
offers            what an upstream is known to offer, over connections and restarts
kept_file         what of both a restart has to know
waits             what has to wait for room is told of once
gate              the throttle of one upstream, off the event loop
desk              the spool, off the event loop
settling          what an attempt came to, written down; reports: what senders are told
owed              how many reports may go in an hour, and who waits for it
late              what is late is told of to its sender
live, edits       the policy file, watched, and what an edit does

Seen from outside:
watch             looks at a sender and makes the snapshot
snapshot          what can be seen at one instant: the one source of all that follows; lane_status of it
events            a line for everything that happens; event_table lists and explains them
wording           how values look in such a line
lines, redaction  how lines get onto stderr, and the texts that none may contain
stderr            standard error that nobody waits for
metrics           live numbers for Prometheus; metric_table lists and explains them
collector         the numbers that are read from a snapshot at each scrape
listener_counts   what listeners counted, also in processes of their own
observer          what a listener tells, turned into events and counts
descriptors       how many there are, and how many of them clients may take
visitors          connections to our HTTP servers: few, short, and the first to go
http, page        /metrics /healthz /readyz /status.json and the status page
operations        what an operator may ask for
operator          answers it for a relay that runs, offline for one that is down
control           the socket in the spool over which a running relay is asked
instants          time as people read it
"""
