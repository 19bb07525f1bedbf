"""SMTP in: what a client says becomes an envelope and a stream of content, or a refusal.

`server` has the end of all sessions; `door` accepts connections, `handshakes` puts them under
implicit TLS.  A `session` is the meaning of the commands on one `connection`, which is octets and
deadlines; `transfer` takes the content of one message.  Pure: `command` (a line taken
apart), `content` (where it ends, and what is wrong with it), `received` (the line that we
add), `access` (who may, and who gives way), `replies` (every text).  `sasl` and `users`
are AUTH; `reception` holds what the sessions of one listener share, `register` their
deadlines; `ports` is all that the listener needs from the rest of the relay.
"""
