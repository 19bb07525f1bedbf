"""In a store: every accepted message, in a form that survives loss of power at any instant.

interface       what any engine promises, and the values it speaks in
engines         which engine keeps a policy's spool, and the one place that opens it
convert         from one engine to another
base            what the engines on a disk share
maildir/        the default engine
log/            the other one; neither knows of the other

What both engines stand on:
message/        a message: its file's format, reading it, drafts, notes
root/           a spool's folder: whose the queue is, the trigger, headroom, the way to corrupt/
identity        queue ids, those of reports too
errors          what an error of the kernel means here

The disk itself:
disk/           its port, and what is made of it: files that are replaced, threads, errors
"""
