"""The disk: an interface so small that the tests can crash a model of it at every call.

durable         the interface and the real disk; no other module syncs, links, renames or locks
kernel_syncs    syncs the files of a batch by one call of the kernel
replacing       replaces a file whole
os_errors       classifies errors of the kernel
"""
