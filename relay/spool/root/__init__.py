"""A spool's folder, alike for every engine: all that stands in it besides the messages.

lock            its `format`, its folders, and whose the queue is
trigger         how a listener wakes the sender
headroom        what new mail leaves free
quarantine      the way to corrupt/
"""
