"""Policies for tests: the documented one, small ones to break, and functions that parse them."""

from pathlib import Path

import pytest

from relay.policy.model import Policy
from relay.policy.source import PolicyError, PolicyFault, parse_policy

INTERFACE = """\
spool: ./var/spool                      # (restart) relative to this file
listen:                                 # (restart)
  - address: 127.0.0.1:2525
    clients: [127.0.0.0/8, "::1"]       # who may relay; everyone else must AUTH, or gets 550/530
http: 127.0.0.1:9725                    # (restart) /metrics /healthz /readyz /status.json
upstreams:                              # the first is the default
  isp:
    host: smtp.example.net
    port: 587
    tls: starttls                       # starttls | implicit | none (with auth: loopback only)
    ca_file: /etc/ssl/isp.pem           # optional
    auth: {user: mjd, password_file: secrets/isp}    # or password_env, password_credential
    connections: 4
    limits:
      - {messages: 8, per: 1m}
      - {recipients: 10000, per: 24h}
    history: ./var/history/isp          # optional; share it between relays on this host
retry: {min: 5m, max: 4h, lifetime: 5d, warn_after: 4h}
"""

SMALL = """\
spool: spool
listen:
  - address: 127.0.0.1:2525
    clients: [127.0.0.0/8]
upstreams:
  isp:
    host: smtp.example.net
    limits:
      - {messages: 8, per: 1m}
"""


def with_upstream(*lines: str) -> str:
    """Return SMALL with these lines as the keys of its upstream; `limits: []` if they name no limits."""
    kept = SMALL.partition("    host:")[0]
    has_limits = any(line.startswith(("limits:", "provider:")) for line in lines)
    return kept + "".join(f"    {line}\n" for line in (*lines, *([] if has_limits else ["limits: []"])))


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
    """Return WHOLE with these texts for LISTEN, UPSTREAM and REST, or with good ones."""
    text = WHOLE
    for name, usual in AS_IT_IS.items():
        text = text.replace(name, others.get(name, usual))
    return text


def parse(text: str) -> Policy:
    """Parse a text as if it were /etc/relay/policy.yaml."""
    return parse_policy(text.encode(), Path("/etc/relay/policy.yaml"))


def faults(text: str) -> tuple[PolicyFault, ...]:
    """Return every fault of a policy text."""
    with pytest.raises(PolicyError) as caught:
        parse_policy(text.encode(), Path("p.yaml"))
    return caught.value.errors


def only_fault(text: str) -> PolicyFault:
    (fault,) = faults(text)
    return fault


def places(text: str) -> list[str]:
    """Return the place of every fault of a policy text as `LINE:COLUMN KEY`."""
    return [f"{fault.line}:{fault.column} {fault.key}" for fault in faults(text)]
