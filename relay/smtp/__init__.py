"""SMTP without I/O, for the listener, the upstream and the practice smarthost.  Pure.

commands           command lines of a client: read and write
reply, replies     replies of a server, read; every text that our servers send
extensions         what a reply to EHLO offers
sasl               PLAIN and LOGIN on both sides; further mechanisms of a client
dot_stuffing       content on the wire, both ways
session_machine    the server's side of a session, as a table
"""
