"""What upstreams count by: a message's sender as they see it, and the keys of limits."""

from relay.policy.lane import LimitSettings


def rewritten(sender: str, rewrite: str) -> str:
    """Return the sender that an upstream sees."""
    if not rewrite or not sender:
        return sender
    return sender.partition("@")[0] + rewrite if rewrite.startswith("@") else rewrite


def key_of_sender(sender: str, limit: LimitSettings) -> str:
    """Return the key of a message; one for all where that is not its sender's."""
    match limit.for_each:
        case "sender":
            return sender
        case "sender_domain":
            return sender.rpartition("@")[2]
        case _:
            return "all"
