"""On disk: every accepted message, in a form that survives loss of power at any instant.

interface       what any engine promises, and the values it speaks in
engines         which engine keeps a policy's spool, and the one place that opens it
convert         from one engine to another
maildir/        the default engine
log/            the other one; neither knows of the other

What both engines stand on:
message/        a message: its file's format, reading it, drafts, notes, what of it is in memory
root/           a spool's folder: who may send, the trigger, headroom, the way to corrupt/
identity        queue ids, those of reports too
ledger          what came in and what became of it
inspecting      what fsck looks at in every spool; finding: what it says

The disk itself:
disk/           its port, and what is made of it
faults          what an engine raises for an error of the kernel
kept_format     how a small record is kept over a restart
"""
