"""The practice smarthost: an upstream that counts, refuses and cuts off, and delivers nothing.

An owner without an account practises on it, and tests and the demo take it as their
judge.  So that it can judge, it shares no arithmetic with the throttle.

    smarthost      the address that it listens on
    conversation   one connection: lines and content, TLS, late replies
    dialogue       what one client says, and what the account makes of it
    account        when an attempt counts, what is answered, what is kept
    witness        what was attempted, and whether any window held too much.  Pure
"""
