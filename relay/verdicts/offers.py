"""What a message may need of a connection, and which refusals are about parameters of DSN.  Pure."""

import enum

from relay.smtp.reply import Reply

_OF_PARAMETERS = frozenset({500, 501, 504, 555})
"""RFC 5321, 4.1.1.11 and 4.2.4; 500 for a line that is too long."""


class Need(enum.StrEnum):
    SMTPUTF8 = "SMTPUTF8"
    EIGHT_BIT = "8BITMIME"
    SIZE = "SIZE"


def is_about_dsn(reply: Reply) -> bool:
    """Whether the refusal of a command that carried DSN parameters may be of these, and not of an address."""
    # RFC 3463, 3.6: X.5.z is about the protocol; X.1.z would be about the address.
    return reply.code in _OF_PARAMETERS and (reply.enhanced is None or reply.enhanced[1:4] == ".5.")
