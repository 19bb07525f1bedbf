"""The practice upstream: it counts, refuses and cuts off, and delivers nothing.

An owner without an account practises on it, and the demo shows it.

    smarthost  the address that it listens on, and its connections
    account    what it counts, and whether that is within its limit.  Pure
"""
