"""Reading a policy in a test, and what is wrong with it in short."""

from pathlib import Path

import pytest

from relay.policy.model import Policy
from relay.policy.source import PolicyError, PolicyFault, parse_policy

WHOLE = """\
spool: spool
listen: [LISTEN]
upstreams:
  isp: {host: isp.example, UPSTREAM}
  ses: {host: ses.example, limits: [], history: /ses}
  twin: {host: isp.example, limits: []}
REST
"""
AS_IT_IS = {"LISTEN": "{address: '127.0.0.1:0', clients: [127.0.0.1]}", "UPSTREAM": "limits: []", "REST": ""}


def whole_policy(**others: str) -> str:
    """Return a good policy, with another LISTEN, UPSTREAM or REST."""
    text = WHOLE
    for name, usual in AS_IT_IS.items():
        text = text.replace(name, others.get(name, usual))
    return text


def parse(text: str) -> Policy:
    """Return the policy in a text, as if it were /etc/relay/policy.yaml."""
    return parse_policy(text.encode(), Path("/etc/relay/policy.yaml"))


def faults(text: str) -> tuple[PolicyFault, ...]:
    """Return all that is wrong with a text."""
    with pytest.raises(PolicyError) as caught:
        parse_policy(text.encode(), Path("p.yaml"))
    return caught.value.errors


def only_fault(text: str) -> PolicyFault:
    """Return the only thing that is wrong with a text."""
    (fault,) = faults(text)
    return fault


def places(text: str) -> list[str]:
    """Return where all that is wrong with a text stands: `LINE:COLUMN KEY`."""
    return [f"{fault.line}:{fault.column} {fault.key}" for fault in faults(text)]
