"""A spool's folder, alike for every engine: all that stands in it besides the messages and their account.

lock            its `format`, its folders, and who may send: what a sender does first
trigger         how a listener wakes the sender
headroom        what new mail leaves free, and the `reserve` for a full disk
quarantine      the way to corrupt/
foreign         our own files told from others'
"""
