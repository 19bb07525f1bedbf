"""SMTP in: what a client says becomes an envelope and a stream of content, or a refusal.

server      from an accepted connection to its end: a balancer's header, a place, TLS, a session
accepting   accepts connections
proxied     the header of a load balancer
shared      what the sessions of one listener share
session     one client: what the machine of `relay.smtp` decides, carried out
wire        its connection: octets and deadlines
content     one message coming in, and what is wrong with it
received    the line that we add.  Pure
access      who may, and who gives way.  Pure
quotas      how much of the queue a user or a client may have.  Pure
users       passwords, and the brake on guessing
ports       what the listener needs from other rooms
"""
