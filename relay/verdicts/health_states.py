"""The states of an upstream, apart from their table: the command line shows them and loads no rules.

Pure.
"""

import enum


class Health(enum.StrEnum):
    UNTRIED = "untried"
    """Used, and since the start no transaction and no refusal has shown whether it works."""
    USED = "used"
    PROVING = "proving"
    """One transaction at a time, until one has gone well."""
    PAUSED = "paused"
    """Refused us; used again at an instant."""
    REFUSED = "refused"
    """Refused the account; one transaction looks into it at an instant, unless an operator acts before."""
    BARRED = "barred"
    """Refused the account, and each attempt makes it worse: until an operator acts."""
    DOUBTED = "doubted"
    """Its refusals look like one of us, and the shield asks the operator; else as REFUSED."""
    UNCOUNTED = "uncounted"
    """Our own history of it cannot be trusted, so nothing may be sent; it is read anew at an instant."""
