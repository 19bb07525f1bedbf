"""Policies for tests: the one that the interface promises, and small ones to spoil."""

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


def with_listen(*lines: str) -> str:
    """Return SMALL with these lines as the keys of its only listener."""
    return SMALL.replace(
        "  - address: 127.0.0.1:2525\n    clients: [127.0.0.0/8]\n",
        "  - " + "\n    ".join(lines) + "\n",
    )


def with_upstream(*lines: str) -> str:
    """Return SMALL with these lines as the keys of its only upstream, without limits if they name none."""
    kept = SMALL.partition("    host:")[0]
    has_limits = any(line.startswith(("limits:", "provider:")) for line in lines)
    return kept + "".join(f"    {line}\n" for line in (*lines, *([] if has_limits else ["limits: []"])))
