"""How long each step of a session may take.  Pure.

In seconds, since the event loop counts so and nothing here outlives a connection.  The
defaults are the minimum that RFC 5321, 4.5.3.2 asks of a client, where it asks: whoever
hangs up sooner after the final dot relays twice.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timeouts:
    connect_s: float = 30.0
    """For the name, and then for each address: a black hole must not hide the next one."""
    greeting_s: float = 300.0
    """RFC 5321, 4.5.3.2.1."""
    hello_s: float = 300.0
    tls_s: float = 60.0
    """For the handshake."""
    auth_s: float = 120.0
    """For each step of the exchange."""
    mail_s: float = 300.0
    """RFC 5321, 4.5.3.2.2."""
    rcpt_s: float = 300.0
    """RFC 5321, 4.5.3.2.3."""
    data_s: float = 120.0
    """RFC 5321, 4.5.3.2.4."""
    block_s: float = 180.0
    """RFC 5321, 4.5.3.2.5: without any progress, while content is being sent."""
    eod_s: float = 600.0
    """RFC 5321, 4.5.3.2.6: from the final dot to its reply."""
    reset_s: float = 30.0
    quit_s: float = 2.0
    """A courtesy: the connection is closed after it either way."""
