"""SMTP in: what a client says becomes an envelope and a stream of content, or a refusal.

server      from an accepted connection to its end: a balancer's header (proxied), a place, TLS, a session
accepting   accepts connections
session     one client: what the machine of `relay.smtp` decides, carried out; shared: for all of a listener
wire        its connection: octets and deadlines
content     one message coming in, and what is wrong with it; received: the line that we add
access      who may, and who gives way; quotas: how much of the queue; users: passwords and guesses
ports       what the listener needs from other rooms
"""
