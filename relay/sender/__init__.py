"""Where queue, spool, throttle and upstream meet.

The dispatcher takes the next message, has a ready connection, and reserves a slot; delivery sends
it and judges the replies; settling writes down what became of it.  Disk and history are behind
threads of their own (`spool_thread`, `throttle_thread`), so the event loop never waits for a disk.
"""
