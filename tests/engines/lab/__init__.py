"""The laboratory: spool and history on real file systems, whose power is cut after the fact.

They are used on ext4, xfs or btrfs, on a loop device over a file of our own FUSE file
system, which logs every write and every flush.  From that log come the images that a
power cut may have left at any point: everything before the last flush, and any part of
what was written after it, torn at 512 bytes.  Each image is mounted, so that the kernel
replays its log; then the spool is started on it, and the oracle of tests.engines.spool, which
knows what those outside had been told by then, says whether a promise was broken.

kernel        system calls that Python does not have: mount, loop devices, namespaces
recorder      the FUSE file system; a program of its own
recorded_disk a loop device over it
blocks        the log of writes and flushes, and the images that it makes possible
filesystems   ext4, xfs and btrfs: made, mounted, checked
play          what is done with a spool and a history meanwhile, and what must hold of an image
experiment    plays recorded, and their images judged

`python -m tests.engines.lab ext4 --seed 5 --images 200` runs one experiment, in a mount namespace
of its own: whatever ends it, no mount and no loop device stays.
"""
