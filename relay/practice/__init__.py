"""The practice smarthost: an upstream that counts, refuses and cuts off, and delivers nothing.

An owner without an account practises on it, and tests and the demo take it as their
judge.  So that it can judge, it shares no arithmetic with the throttle.

ledger      what was attempted, and whether any window held too much.  Pure
account     when an attempt counts, what is answered, what is kept
sasl        who may log in.  Pure
dialogue    commands and replies: SMTP as a strict server speaks it.  Pure
session     one connection: bytes to lines and content, TLS, late replies
smarthost   the address that it listens on
"""
