"""The laboratory: a real relay on real file systems, whose power is cut after the fact.

The relay works on ext4, xfs or btrfs, on a loop device over a file of our own FUSE file
system, which logs every write and every flush.  From that log come the images that a
power cut may have left at any point: everything before the last flush, and any part of
what was written after it, torn at 512 bytes.  Each image is mounted, so that the kernel
replays its log; then the spool is started on it, and a judge who knows only what those
outside had been told by then says whether a promise was broken.

kernel       system calls that Python does not have: mount, loop devices, namespaces
recorder     the FUSE file system; a program of its own
blocks       the log of writes and flushes, and the images that it makes possible
filesystems  ext4, xfs and btrfs: made, mounted, checked
observations what those outside know, and since which place in the log of blocks
upstream     an upstream that refuses, defers, hangs up and notes what it sees
workload     the relay at work: clients, a kill
judge        what must hold of each image, by the observations alone
experiment   plays recorded, and their images judged
careless     a relay that leaves out a sync, to show that the laboratory sees it

`python -m tests.engines.lab ext4 --seed 5 --images 200` runs one experiment, in a mount namespace
of its own: whatever ends it, no mount and no loop device stays.
"""
