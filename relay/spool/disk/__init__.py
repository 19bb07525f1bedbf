"""The disk as the relay sees it: little enough for a model of it to crash at every call.

durable         the port of the disk, the only place that syncs, links, renames and locks; the real one
kernel_syncs    the syncs of a batch, made by the kernel together
replacing       puts one file in the place of another
os_errors       what an error of the kernel is about
"""
