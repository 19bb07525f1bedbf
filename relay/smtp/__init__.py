"""SMTP without I/O, for the listener, the upstream and the practice smarthost.  Pure.

commands           lines of a client, read and written
reply, replies     what a server says, read; every text that our servers say
extensions         what a reply to EHLO offers
sasl               PLAIN and LOGIN from both sides; what else a client logs in by
dot_stuffing       content as it travels, both ways
session_machine    the server's side of a session, as a table
"""
