"""SMTP server: turns a client's commands into an envelope and a stream of content, or refuses them.

server      one listener, from accept to close: PROXY header (`proxied`), connection limits, TLS, sessions
accepting   accepts connections on a socket
session     one client's session, driven by `relay.smtp`; `listener_state`: the state that all sessions share
wire        one client's connection: lines, chunks, replies, deadlines
content     decodes and checks the content of one message; `received`: the `Received:` line
access      who may connect and relay; `quotas`: limits of the queue; `users`: passwords, brake on guessing
ports       the interfaces that the listener needs from other rooms; `listener_files`: users and certificate
"""
