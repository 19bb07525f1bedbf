"""The worlds: policies, and what may happen under each."""

from tests.simulation.script import World
from tests.simulation.upstream import Mood

_HEAD = """
spool: {path: /var/spool, engine: {ENGINE}}
hostname: relay.test
listen: [{address: "127.0.0.1:2525", clients: [127.0.0.0/8], processes: 0}]
retry: {min: 7s, max: 9s, lifetime: 5d, warn_after: null}
reports: {per_hour: null}
"""


def _upstream(name: str, port: int, limits: str, more: str = "") -> str:
    return (
        f"  {name}: {{host: 127.0.0.1, port: {port}, tls: none, connections: 2, "
        f"history: /var/history/{name}, max_transaction: 3m, limits: [{limits}]{more}}}\n"
    )


def _one(limits: str, more: str = "", rest: str = "") -> str:
    return f"{_HEAD}upstreams:\n{_upstream('isp', 1001, limits, more)}{rest}"


PORTS = {"isp": 1001, "other": 1002}

_ROUTES = """routes:
  - {recipient_domain: y.test, upstreams: [other, isp], failover_after: 40s}
  - {upstreams: [isp, other], failover_after: 40s, spill_after: 2m}
"""
_TWO = _upstream("isp", 1001, "{messages: 3, per: 60s}") + _upstream("other", 1002, "{messages: 4, per: 30s}")

WORLDS = {
    world.name: world
    for world in (
        World("plain", (_one("{messages: 7, per: 20s}"),)),
        World(
            "limits",
            (
                _one(
                    "{messages: 9, per: 30s}, {recipients: 12, per: 20s}, {bytes: 60K, per: 30s}, "
                    "{recipients: 4, per: 40s, for_each: sender}, {connections: 5, per: 10s}"
                ),
            ),
            senders=("list@here.test", "s{n}@here.test"),
            calm_s=1800.0,
        ),
        World(
            "routes",
            (f"{_HEAD}upstreams:\n{_TWO}{_ROUTES}",),
            upstreams=("isp", "other"),
            domains=("x.test", "y.test"),
            weights={"feel": 5},
            calm_s=2400.0,
        ),
        World(
            "lanes",
            (
                _one(
                    "{messages: 5, per: 20s}",
                    rest="lanes:\n  resets: {sender: s1@here.test, share: 50}\n"
                    "  lists: {sender: list@here.test, share: 20, ceiling: 60}\n",
                ),
            ),
            senders=("list@here.test", "list@here.test", "s1@here.test", "s{n}@here.test"),
            messages=40,
            weights={"feel": 2, "crash": 1},
        ),
        World(
            "edits",
            (
                _one("{messages: 7, per: 20s}"),
                _one("{messages: 3, per: 20s}"),
                _one("{messages: 7, per: 20s}, {recipients: 6, per: 30s}"),
                _one("{messages: 2, per: 60s}"),
            ),
            weights={"edit": 4},
            calm_s=1800.0,
        ),
        World(
            "long window",
            (_one("{messages: 1000, per: 6h}"),),
            senders=("s{n}@here.test", "s1@here.test"),
            weights={"feel": 5, "disturb": 2},
        ),
        World("clock", (_one("{messages: 5, per: 60s}"),), weights={"clock": 3}, calm_s=40_000.0),
        World(
            "disk",
            (_one("{messages: 7, per: 20s}"),),
            weights={"disturb": 4, "feel": 1},
            moods=(Mood.HANGS_UP,),
        ),
        World(
            "long content",
            (_one("{messages: 7, per: 20s}"),),
            lines=(1, 9_000, 20_000),
            messages=5,
            weights={"disturb": 2},
        ),
        World(
            "two relays",
            (_one("{messages: 7, per: 20s}"),),
            relays=2,
            weights={"crash": 2},
        ),
        World(
            "hostile",
            (_one("{messages: 7, per: 20s}, {connections: 30, per: 60s}"),),
            moods=(
                Mood.ODD,
                Mood.UNASKED,
                Mood.HANGS,
                Mood.DROPS,
                Mood.DEAF,
                Mood.GOES,
                Mood.HANGS_UP,
                Mood.BLOCKED,
            ),
            weights={"feel": 8},
        ),
    )
}
