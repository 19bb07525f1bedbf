"""On disk: every accepted message, in a form that survives loss of power at any instant.

interface       what any engine promises, and the values it speaks in
engines         which engine keeps a policy's spool, and the one place that opens it
maildir/        the default engine
durable         the port of the disk, the only place that syncs, links, renames and locks
replacing       puts one file in the place of another; batched_sync: files that wait for the disk together

What all engines share:
identity        queue ids, those of reports too
ledger          what came in and what became of it
lock, trigger   a spool's root and who may send, and how a listener wakes that process
headroom        what new mail leaves free, and the reserve for a full disk
os_errors       what an error of the kernel is about
kept_format     how a small record is kept over a restart
quarantine      the way to corrupt/; foreign: our own files told from others'
finding         what fsck says; threads: threads that run before they are needed
"""
