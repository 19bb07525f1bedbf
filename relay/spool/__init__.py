"""On disk: every accepted message, in a form that survives loss of power at any instant.

interface   what any engine promises, and the values it speaks in
durable     the only place that syncs, links, renames and locks: the port of the disk
together    one batch of files waits for the disk together; submission has the kernel sync them at once
threads     threads that run before there is anything for them to do
replacing   small files that are replaced whole; mounts names file systems that keep nothing
faults      what an error of the disk means for the sender
identity    queue ids

The maildir, the default engine:
layout      where things are, and what a restart does with each: the table of states
record      the bytes of one message file; files reads and checks them
intake      the listener's side: drafts, and the moment they become ours
arrivals    the way from the listeners into the queue
maildir     the sender's side: one file a message, its folder is its state
marks       the status bytes of one file: verified all, then written
foreign     what is none of ours, and the way to corrupt/
leftovers   what a crash left of ours, told from what others put in its place
room        the headroom that new mail leaves, and a reserve that gives way
left        what a start had to leave, read again until the disk gives it; removal takes away what has ended
recovery    what a start makes of whatever a crash left
memory      what was just taken, in memory until it is sent
notes       why recipients failed, until the report about them is queued
ledger      what ever came in and what became of it
lock        one sender a spool
inspection  what a spool looks like at rest: `relay fsck`; accounts reads the ledger and the notes for it
trigger     how a listener wakes the sender
"""
