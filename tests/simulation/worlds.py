"""The worlds: policies, and what may happen under each."""

from typing import Any

from relay.clock import SECOND_NS
from tests.simulation.script import CUT, FOR_GOOD_S, NO_NEWS, World
from tests.simulation.upstream import Mood

DAY_NS = 86_400 * SECOND_NS
_HEAD = """
spool: {path: /var/spool, engine: {ENGINE}}
hostname: relay.test
listen: [{address: "127.0.0.1:2525", clients: [127.0.0.0/8], processes: 0}]
retry: {min: %s, lifetime: %s, warn_after: %s}
reports: {per_hour: %s}
"""
_RETRY = "7s, max: 9s"


def _upstream(name: str, port: int, limits: str, history: str = "") -> str:
    return (
        f"  {name}: {{host: 127.0.0.1, port: {port}, tls: none, connections: 2, "
        f"history: '{history or f'/var/history/{name}'}', max_transaction: 3m, limits: [{limits}]}}\n"
    )


def _one(
    limits: str,
    *,
    rest: str = "",
    lifetime: str = "5d",
    warn_after: str = "null",
    reports_per_hour: str = "null",
    history: str = "",
    retry: str = _RETRY,
) -> str:
    head = _HEAD % (retry, lifetime, warn_after, reports_per_hour)
    return f"{head}upstreams:\n{_upstream('isp', 1001, limits, history)}{rest}"


def _shared(limits: str) -> str:
    policy = _one(limits, lifetime="366d", history="postgresql://db.test/relay")
    # A lease is twice as long: the sooner it is over, the more stories there are.
    policy = policy.replace("max_transaction: 3m", "max_transaction: 90s")
    return policy.replace("{ENGINE}", "postgresql, postgresql: 'postgresql://db.test/relay'")


PORTS = {"isp": 1001, "other": 1002}

_ROUTES = """routes:
  - {recipient_domain: y.test, upstreams: [other, isp], failover_after: 40s}
  - {upstreams: [isp, other], failover_after: 40s, spill_after: 2m}
"""
_TWO = _upstream("isp", 1001, "{messages: 3, per: 60s}") + _upstream("other", 1002, "{messages: 4, per: 30s}")

_TWO_WIDE = _upstream("isp", 1001, "{messages: 30, per: 60s}") + _upstream(
    "other", 1002, "{messages: 40, per: 60s}"
)
_REVERSED = """routes:
  - {recipient_domain: x.test, upstreams: [other]}
  - {upstreams: [isp]}
"""
_LANES = "lanes:\n  lists: {recipient_domain: y.test, share: 20}\n"
_OTHER_ACCOUNT = _TWO.replace("/var/history/isp", "/var/history/isp-again")
_ACCOUNTS = (
    *(_TWO + _ROUTES, _TWO + _REVERSED, _TWO + _ROUTES + _LANES),
    *(_OTHER_ACCOUNT + _ROUTES, _OTHER_ACCOUNT + _REVERSED),
)

_BY_THE_MONTH = "{messages: 300, per: 30d}, {messages: 40, per: 1d}, {messages: 9, per: 1h}"
_SLOW: Any = {
    "look_s": 3_600.0,
    "again_s": 900.0,
    "retry_max_s": 8 * 3_600.0,
    "minutes": 100 * 1_440.0,
    "messages": 40,
    "lasting_s": (60.0, 5_000.0, 20_000.0),
    "downs_s": (0.0, 100.0, 40_000.0, 86_400.0),
    "away_s": (30, 4_000, 40_000),
    "faults_s": (10.0, 4_000.0, 20_000.0),
    "calm_s": 200 * 86_400.0,
}
"""What is the same where days pass in between."""

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
        ),
        World(
            "routes",
            (_HEAD % (_RETRY, "5d", "null", "null") + f"upstreams:\n{_TWO}{_ROUTES}",),
            upstreams=("isp", "other"),
            domains=("x.test", "y.test"),
            routes={"x.test": ("isp", 120), "y.test": ("other", 0)},
            lasting_s=(1.0, 20.0, 90.0, 300.0),
            weights={"feel": 5},
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
            ceiling_percent=60,
            half_of_all=("s1@here.test",),
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
        ),
        World(
            "long window",
            (_one("{messages: 1000, per: 6h}"),),
            senders=("s{n}@here.test", "s1@here.test"),
            weights={"feel": 5, "disturb": 2},
        ),
        World("clock", (_one("{messages: 5, per: 60s}"),), weights={"clock": 3}, calm_s=40_000.0),
        World(
            "stopped",
            (_one("{messages: 5, per: 60s}"),),
            relays=2,
            clocks=("stop",),
            weights={"clock": 3, "crash": 1, "disturb": 0},
        ),
        World(
            "year",
            (_one("{messages: 5, per: 60s}", lifetime="30d", warn_after="1d"),),
            warn_after_ns=86_400 * SECOND_NS,
            clocks=("year", "year back"),
            weights={"clock": 2, "crash": 2, "feel": 2},
            calm_s=40_000.0,
        ),
        World(
            "reports asked for",
            (_one("{messages: 7, per: 20s}"),),
            senders=("s{n}@here.test", "s{n}@here.test", "bad-s{n}@here.test", "later-s{n}@here.test", ""),
            notifies=("", "", "NEVER", "SUCCESS", "SUCCESS,FAILURE", "FAILURE", "DELAY", "FAILURE,DELAY"),
            rets=("", "FULL", "HDRS"),
            moods=(
                Mood.OFFERS_NO_DSN,
                Mood.OFFERS_NO_DSN,
                Mood.REFUSES_DSN,
                Mood.HANGS_UP,
                Mood.DROPS,
                Mood.GREYLIST,
                Mood.DOWN,
            ),
            weights={"feel": 5},
        ),
        World(
            "warned and expired",
            (_one("{messages: 20, per: 20s}", lifetime="8m", warn_after="90s"),),
            kinds=("ok", "later", "never", "never", "bad"),
            lifetime_ns=8 * 60 * SECOND_NS,
            warn_after_ns=90 * SECOND_NS,
            notifies=("", "", "", "NEVER", "FAILURE", "DELAY", "FAILURE,DELAY"),
            moods=(),
            acts=("retry", "first"),
            messages=6,
            weights={"crash": 2, "disturb": 0},
            calm_s=1_000.0,
        ),
        World(
            "expired and paused",
            (_one("{messages: 20, per: 20s}", lifetime="8m"),),
            kinds=("ok", "later", "never", "never"),
            lifetime_ns=8 * 60 * SECOND_NS,
            moods=(Mood.QUOTA_AT_MAIL, Mood.QUOTA_AT_DOT),
            acts=(),
            messages=5,
            minutes=9.0,
            weights={"feel": 5, "crash": 0, "disturb": 0},
            calm_s=2_000.0,
        ),
        World(
            "warned and waiting",
            (_one("{messages: 2, per: 60s}", warn_after="70s"),),
            kinds=("ok",),
            warn_after_ns=70 * SECOND_NS,
            warns_of_waiting=True,
            notifies=("", "", "", "NEVER", "FAILURE", "DELAY", "FAILURE,DELAY"),
            moods=(),
            messages=30,
            acts=(),
            weights={"crash": 0, "disturb": 0},
            calm_s=4_000.0,
        ),
        World(
            "failover",
            (_HEAD % (_RETRY, "5d", "null", "null") + f"upstreams:\n{_TWO_WIDE}{_ROUTES}",),
            upstreams=("isp", "other"),
            domains=("x.test", "y.test"),
            routes={"x.test": ("isp", 120), "y.test": ("other", 0)},
            lasting_s=(600.0,),
            kinds=("ok", "ok", "bad"),
            moods=(Mood.DOWN, Mood.BUSY, Mood.QUOTA_AT_MAIL, Mood.QUOTA_AT_DOT),
            acts=(),
            weights={"feel": 1, "crash": 0, "disturb": 0},
            calm_s=2_000.0,
        ),
        World(
            "blocked",
            (_one("{messages: 20, per: 20s}"),),
            kinds=("ok",),
            moods=(Mood.BLOCKED,),
            lasting_s=(90.0, 300.0),
            acts=(),
            messages=40,
            weights={"feel": 2, "crash": 0, "disturb": 0},
        ),
        World(
            "accounts edited",
            tuple(_HEAD % (_RETRY, "5d", "null", "null") + f"upstreams:\n{each}" for each in _ACCOUNTS),
            upstreams=("isp", "other"),
            domains=("x.test", "y.test"),
            acts=("pause", "pause", "resume", "hold"),
            weights={"edit": 5, "act": 6, "feel": 2},
        ),
        World(
            "reports an hour",
            (_one("{messages: 50, per: 10s}", reports_per_hour="3"),),
            kinds=("bad", "bad", "ok"),
            reports_per_hour=3,
            notifies=("", "", "SUCCESS,FAILURE"),
            moods=(),
            acts=(),
            weights={"crash": 2, "disturb": 0},
            look_s=20.0,
            messages=12,
            calm_s=5 * 3_600.0,
        ),
        World(
            "one sender for all",
            (_one("{messages: 7, per: 20s}", rest="routes: [{upstreams: [isp], rewrite: news@isp.test}]\n"),),
            rewrite="news@isp.test",
            weights={"feel": 3},
        ),
        World(
            "one domain for all",
            (_one("{messages: 7, per: 20s}", rest='routes: [{upstreams: [isp], rewrite: "@isp.test"}]\n'),),
            rewrite="@isp.test",
            notifies=("", "SUCCESS"),
            weights={"feel": 3},
        ),
        World(
            "echoes",
            (_one("{messages: 12, per: 20s}"),),
            subjects=(
                "Hello",
                "Daily sending quota exceeded",
                "Your account is blocked",
                "try again in 2 hours",
            ),
            kinds=(
                "ok",
                "later",
                "junk",
                "slow",
                "bad",
                "bad-daily-sending-quota-exceeded-",
                "bad-too-many-messages-",
            ),
            senders=("s{n}@here.test", "account-blocked-{n}@here.test", "rate-limit-exceeded@here.test"),
            domains=("x.test", "spam-limit.test"),
            moods=(),
            acts=(),
            weights={"crash": 2, "disturb": 0},
        ),
        World(
            "may not send",
            (_one("{messages: 9, per: 20s}", lifetime="1h"),),
            senders=("s{n}@here.test", "s{n}@here.test", "alien-s{n}@here.test"),
            kinds=("ok",),
            lifetime_ns=3_600 * SECOND_NS,
            moods=(),
            acts=(),
            messages=25,
            look_s=20.0,
            minutes=240.0,
            weights={"crash": 0, "disturb": 0},
            calm_s=17 * 3_600.0,
        ),
        World(
            "many recipients",
            (_one("{messages: 20, per: 20s}, {recipients: 60, per: 30s}"),),
            kinds=("ok", "ok", "ok", "bad", "later", "slow"),
            recipients=(1, 4, 12, 26),
            most_recipients=7,
            messages=8,
            moods=(Mood.GREYLIST, Mood.QUOTA_AT_MAIL, Mood.HANGS_UP, Mood.GOES),
            weights={"feel": 2},
        ),
        World(
            "out of step",
            (_one("{messages: 12, per: 20s}"),),
            kinds=("ok", "ok", "bad"),
            recipients=(1, 2, 3, 5),
            moods=(Mood.ADDS, Mood.OMITS, Mood.LEAVES, Mood.UNASKED),
            acts=(),
            weights={"feel": 6, "crash": 1, "disturb": 0},
        ),
        World(
            "keys",
            (
                _one(
                    "{messages: 20, per: 30s}, {messages: 2, per: 40s, for_each: sender}, "
                    "{recipients: 6, per: 60s, for_each: recipient_domain}, "
                    "{messages: 5, per: 50s, for_each: sender_domain}"
                ),
            ),
            senders=("s1@here.test", "s2@here.test", "s{n}@there.test", "list@there.test"),
            domains=("x.test", "y.test", "z.test"),
            messages=20,
        ),
        World(
            "by the hour",
            (_one("{messages: 6, per: 1h}, {messages: 4, per: 30s}"),),
            look_s=20.0,
            minutes=14.0,
            messages=7,
            calm_s=4 * 3_600.0,
        ),
        World(
            "ceilings",
            (_one("{messages: 12, per: 60s}"),),
            minutes=8.0,
            messages=30,
            ceiling_percent=17,
            weights={"crash": 2, "feel": 2},
        ),
        World(
            "operator",
            (_one("{messages: 4, per: 20s}"),),
            acts=("hold", "release", "retry", "first", "bounce", "delete", "pause", "resume"),
            messages=20,
            minutes=3.0,
            weights={"act": 12, "feel": 2, "crash": 2},
        ),
        World(
            "damage",
            (_one("{messages: 3, per: 60s}"),),
            moods=(),
            acts=("hold",),
            messages=20,
            minutes=3.0,
            weights={"crash": 0, "disturb": 0, "damage": 9, "act": 2},
        ),
        World(
            "fair weather",
            (_one("{messages: 4, per: 20s}"),),
            kinds=("ok", "ok", "ok", "bad"),
            moods=(),
            acts=(),
            messages=30,
            weights={"crash": 0, "disturb": 0},
        ),
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
            "months",
            (_one(_BY_THE_MONTH, lifetime="20d", warn_after="1d", retry="15m, max: 8h"),),
            kinds=("ok", "ok", "ok", "later", "bad", "never"),
            lifetime_ns=20 * DAY_NS,
            warn_after_ns=DAY_NS,
            steps_s=(1, 400, 3_600),
            acts=("retry", "first", "pause", "resume"),
            weights={"crash": 6, "clock": 5, "feel": 6, "disturb": 3},
            **_SLOW,
        ),
        World(
            "months of wrong clocks",
            (_one(_BY_THE_MONTH, lifetime="366d", retry="15m, max: 8h"),),
            steps_s=(1, 400, 60 * 86_400),
            weights={"crash": 6, "clock": 5, "feel": 6, "disturb": 3},
            **_SLOW,
        ),
        World(
            "three hosts",
            (_one("{messages: 7, per: 20s}", lifetime="366d", history="postgresql://db.test/relay"),),
            relays=3,
            is_shared=True,
            messages=30,
            disturbances=(
                *("database: stops", "database: silent", "database: a line is lost", NO_NEWS),
                *("database: a COMMIT's line is lost", "database: a COMMIT's line is lost"),
                *("disk full", "sync fails"),
            ),
            steps_s=(1, 400, 60 * 86_400),
            clocks=("step", "step back", "stop"),
            weights={"crash": 4, "disturb": 10, "clock": 2, "feel": 2},
            calm_s=400.0,
        ),
        World(
            "three hosts without news",
            (_one("{messages: 20, per: 20s}", history="postgresql://db.test/relay"),),
            relays=3,
            is_shared=True,
            messages=60,
            kinds=("ok",),
            moods=(Mood.QUOTA_AT_MAIL, Mood.QUOTA_AT_DOT),
            lasting_s=(20.0, 90.0),
            acts=("pause", "resume"),
            disturbances=(NO_NEWS,),
            clocks=("step of the database",),
            weights={"crash": 0, "disturb": 8, "clock": 2, "feel": 4, "act": 6},
        ),
        World(
            "one queue",
            (
                *(_shared("{messages: 5, per: 20s}"), _shared("{messages: 3, per: 20s}")),
                _shared("{messages: 5, per: 20s}, {recipients: 9, per: 30s}"),
            ),
            relays=3,
            is_shared=True,
            engines=("postgresql",),
            messages=30,
            minutes=1.0,
            look_s=4.0,
            lines=(1, 10, 300, 9_000),
            acts=("hold", "release", "retry", "first", "bounce", "delete", "pause", "resume"),
            disturbances=(
                *("database: stops", "database: silent", "database: a line is lost", NO_NEWS, CUT, CUT),
                *("database: a COMMIT's line is lost", "database: a COMMIT's line is lost"),
                *("disk full", "sync fails"),
            ),
            faults_s=(0.5, 10.0, 60.0, 200.0),
            downs_s=(0.0, 3.0, 100.0, FOR_GOOD_S),
            steps_s=(1, 30),
            away_s=(30, 200, 200),
            clocks=("step", "stop", "stop", "stop"),
            weights={"crash": 4, "disturb": 6, "clock": 4, "feel": 2, "act": 6, "edit": 2},
            calm_s=1_000.0,
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
                Mood.MUTE,
                Mood.QUOTA_AT_DOT,
            ),
            weights={"feel": 8},
        ),
    )
}
