"""The laboratory: the spool on real file systems, whose power is cut after the fact.

It runs on ext4, xfs or btrfs, on a loop device over a file of the laboratory's FUSE file system. That file
system logs every write and every flush. From its log come the images that a power cut at any point may leave:
all writes before the last flush, and any part of the later writes, torn at 512 bytes. Each image is mounted,
so the kernel replays the file system's log. Then the spool starts on the image, and the oracle of
tests.engines.spool, which knows what clients had been told by then, says whether a promise was broken.

machine    a mount namespace, and ext4, xfs and btrfs: make, mount
recorder   the FUSE file system; a program of its own
blocks     the log of writes and flushes, and the images that it makes possible
__main__   records plays on a loop device over the FUSE file, and judges their images

`python -m tests.engines.lab ext4 --seed 5 --images 200` runs one experiment in its own mount namespace.
However the experiment ends, no mount and no loop device stays.
"""
