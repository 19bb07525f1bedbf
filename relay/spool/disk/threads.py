"""Threads that run before there is anything for them to do.

An executor starts its threads with the first calls.  A call for which the kernel gives no thread
raises RuntimeError and yet stays in line: nobody knows whether, or on which descriptor, it is made.
So a lack of threads is met here, where nothing depends on it yet.
"""

import threading
from concurrent.futures import ThreadPoolExecutor


def started(count: int, name: str) -> ThreadPoolExecutor:
    """Return an executor whose threads all run.  Raises RuntimeError where the kernel gives fewer."""
    threads = ThreadPoolExecutor(count, thread_name_prefix=name)
    # Each takes one call and keeps it until all are there, so that none takes two.
    all_there = threading.Barrier(count + 1)
    try:
        for _ in range(count):
            threads.submit(_be_there, all_there)
        all_there.wait()
    except RuntimeError:
        all_there.abort()
        threads.shutdown(cancel_futures=True)
        raise
    return threads


def _be_there(all_there: threading.Barrier) -> None:
    all_there.wait()
