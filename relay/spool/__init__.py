"""The spool: the store of every accepted message.  It survives loss of power at any instant.

interface       what every engine guarantees, and the types of its arguments and results
engines         opens the engine of a policy's spool; no other module does
convert         converts a spool from one engine to another
base            what the maildir and the log share

The engines, which know nothing of one another:
maildir/        the default
log/            the other engine on a disk
postgresql/     for hosts that share a queue in a database (database/)

What the engines use:
message/        a message: the format of its file, reading, drafts, notes
root/           the folder of a spool: its locks, the trigger, headroom, corrupt/
identity        queue ids, also of reports; `errors` translates errors of the kernel
disk/           the disk: its interface, files that are replaced whole, batches of syncs, errors
"""
