"""SMTP without I/O, for the listener, the upstream and the practice smarthost.  Pure.

commands           lines of a client, read and written
reply, replies     what a server says, read; every text that our servers say
extensions         what a reply to EHLO offers, read and written
sasl               PLAIN, LOGIN, CRAM-MD5 from both sides, EXTERNAL from the client's
dot_stuffing       content as it travels, both ways
session_machine    the server's side of a session, as a table
"""
