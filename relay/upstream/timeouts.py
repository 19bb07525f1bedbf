"""How long each step of a session may take.  Pure.

In seconds, since the event loop counts so and nothing here outlives a connection.  The
defaults are the minimum that RFC 5321, 4.5.3.2 asks of a client, where it asks: whoever
hangs up sooner after the final dot relays twice.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timeouts:
    connect_s: float = 30.0  # for the name, and then for each address: a black hole must not hide the next
    greeting_s: float = 300.0
    hello_s: float = 300.0
    tls_s: float = 60.0  # for the handshake
    auth_s: float = 120.0  # for each step of the exchange
    mail_s: float = 300.0
    rcpt_s: float = 300.0
    data_s: float = 120.0
    block_s: float = 180.0  # without any progress, while content is being sent
    eod_s: float = 600.0  # from the final dot to its reply
    reset_s: float = 30.0
    quit_s: float = 2.0  # a courtesy: the connection is closed after it either way
