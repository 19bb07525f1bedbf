"""The folder of a spool: what is the same in it for every engine.

lock            the `format`, the folders, and the locks of owner and listeners
trigger         how a listener wakes the sender
headroom        how much of the disk new mail leaves free
quarantine      moves damaged messages to corrupt/
"""
