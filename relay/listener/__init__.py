"""SMTP in: what a client says becomes an envelope and a stream of content, or a refusal.

server      the end of all sessions, and connections under implicit TLS
accepting   accepts connections
proxied     of a load balancer: reads first whose they are; proxy_header is its grammar, pure
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
