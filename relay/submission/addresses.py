"""The addresses in a header or on a command line, all of them.  Pure.

Guarantees: nothing is repaired or left out: what is no address raises, so that no recipient is lost without
a word.  A name without a domain gets that of this host, where one is given.
"""

from relay.mail.address import is_valid_address, mailboxes

_SHOWN = 200
"""So many characters of a text does an error show."""
_UNREADABLE = "\ufffd"
"""What an octet outside UTF-8 was read as."""


class NotAnAddress(ValueError):  # noqa: N818 - it is what the caller wrote
    """The text says what is no address."""


def addresses_in(text: str, hostname: str | None) -> list[str]:
    """Return each once, in order.  Raises NotAnAddress."""
    found, is_closed = mailboxes(text)
    if not is_closed:
        raise NotAnAddress(f"{text[:_SHOWN]}: a bracket is not closed")
    if any(not each.address or each.rest for each in found):
        raise NotAnAddress(f"{text[:_SHOWN]}: is not a list of addresses")
    return list(dict.fromkeys(_qualified(each.address, hostname) for each in found))


def _qualified(address: str, hostname: str | None) -> str:
    full = f"{address}@{hostname}" if "@" not in address and hostname else address
    if _UNREADABLE in full or not is_valid_address(full, smtputf8=True):
        raise NotAnAddress(f"{address[:_SHOWN]}: is not an address")
    return full
