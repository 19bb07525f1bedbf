"""The worlds: policies, and the events that may happen under each."""

from functools import partial

from relay.clock import SECOND_NS
from tests.simulation.script import CUT, FOR_GOOD_S, NO_NEWS, World
from tests.simulation.upstream import Mood

MINUTE_NS = 60 * SECOND_NS
DAY_NS = 86_400 * SECOND_NS
YEAR_S = 31_536_000
PORTS = {"isp": 1001, "other": 1002}
_HEAD = """
spool: {path: /var/spool, engine: {ENGINE}}
hostname: relay.test
listen: [{address: "127.0.0.1:2525", clients: [127.0.0.0/8], processes: 0}]
retry: {min: %s, lifetime: %s, warn_after: %s}
reports: {per_hour: %s}
"""
_RETRY = "7s, max: 9s"


def _upstream(name: str, limits: str, history: str = "") -> str:
    return (
        f"  {name}: {{host: 127.0.0.1, port: {PORTS[name]}, tls: none, connections: 2, "
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
    return f"{head}upstreams:\n{_upstream('isp', limits, history)}{rest}"


def _two(isp: str, other: str, rest: str, history: str = "") -> str:
    upstreams = _upstream("isp", isp, history) + _upstream("other", other)
    return f"{_HEAD % (_RETRY, '5d', 'null', 'null')}upstreams:\n{upstreams}{rest}"


def _shared(limits: str) -> str:
    policy = _one(limits, lifetime="366d", history="postgresql://db.test/relay")
    # A lease lasts twice max_transaction: a shorter lease gives more take-overs in a story.
    policy = policy.replace("max_transaction: 3m", "max_transaction: 90s")
    return policy.replace("{ENGINE}", "postgresql, postgresql: 'postgresql://db.test/relay'")


_NARROW = ("{messages: 3, per: 60s}", "{messages: 4, per: 30s}")
_WIDE = ("{messages: 30, per: 60s}", "{messages: 40, per: 60s}")
_ROUTES = """routes:
  - {recipient_domain: y.test, upstreams: [other, isp], failover_after: 40s}
  - {upstreams: [isp, other], failover_after: 40s, spill_after: 2m}
"""
_FIRST = {"x.test": ("isp", 120), "y.test": ("other", 0)}
_REVERSED = """routes:
  - {recipient_domain: x.test, upstreams: [other]}
  - {upstreams: [isp]}
"""
_LISTS = "lanes:\n  lists: {recipient_domain: y.test, share: 20}\n"
_LANES = """lanes:
  resets: {sender: s1@here.test, share: 50}
  lists: {sender: list@here.test, share: 20, ceiling: 60}
"""
_AGAIN = "/var/history/isp-again"
"""The history of another account."""
_OF_DATABASE = (
    *("database: stops", "database: silent", "database: a line is lost", NO_NEWS, "disk full", "sync fails"),
    *("database: a COMMIT's line is lost", "database: a COMMIT's line is lost"),
)
_QUOTAS = (Mood.QUOTA_AT_MAIL, Mood.QUOTA_AT_DOT)
_LATE = ("", "", "", "NEVER", "FAILURE", "DELAY", "FAILURE,DELAY")

_UNMOVED = partial(World, moods=(), acts=())
"""A world whose upstreams are well all the time, and in which no operator acts."""

WORLDS = {
    world.name: world
    for world in (
        World(
            "three hosts",
            (_one("{messages: 7, per: 20s}", lifetime="366d", history="postgresql://db.test/relay"),),
            relays=3,
            is_shared=True,
            messages=30,
            disturbances=_OF_DATABASE,
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
            moods=_QUOTAS,
            lasting_s=(20.0, 90.0),
            acts=("pause", "resume"),
            disturbances=(NO_NEWS,),
            clocks=("step of the database",),
            weights={"crash": 0, "disturb": 8, "clock": 2, "feel": 8, "act": 6},
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
            acts=("hold", "release", "retry", "bounce", "delete", "pause", "resume"),
            disturbances=(*_OF_DATABASE, CUT, CUT),
            faults_s=(0.5, 10.0, 60.0, 200.0),
            downs_s=(0.0, 3.0, 100.0, FOR_GOOD_S),
            steps_s=(1, 30),
            away_s=(30, 200, 200),
            clocks=("step", "stop", "stop", "stop"),
            weights={"crash": 4, "disturb": 6, "clock": 4, "feel": 2, "act": 6, "edit": 2},
            calm_s=1_000.0,
        ),
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
            "routes",
            (_two(*_NARROW, _ROUTES),),
            upstreams=("isp", "other"),
            domains=("x.test", "y.test"),
            routes=_FIRST,
            lasting_s=(1.0, 20.0, 90.0, 300.0),
            weights={"feel": 5},
        ),
        World(
            "failover",
            (_two(*_WIDE, _ROUTES),),
            upstreams=("isp", "other"),
            domains=("x.test", "y.test"),
            routes=_FIRST,
            lasting_s=(600.0,),
            kinds=("ok", "ok", "bad"),
            moods=(Mood.DOWN, Mood.BUSY, *_QUOTAS),
            acts=(),
            weights={"feel": 1, "crash": 0, "disturb": 0},
            calm_s=2_000.0,
        ),
        World(
            "lanes",
            (_one("{messages: 5, per: 20s}", rest=_LANES),),
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
            "accounts edited",
            (
                *(_two(*_NARROW, _ROUTES), _two(*_NARROW, _REVERSED), _two(*_NARROW, _ROUTES + _LISTS)),
                *(_two(*_NARROW, _ROUTES, _AGAIN), _two(*_NARROW, _REVERSED, _AGAIN)),
            ),
            upstreams=("isp", "other"),
            domains=("x.test", "y.test"),
            acts=("pause", "pause", "resume", "hold"),
            weights={"edit": 5, "act": 6, "feel": 2},
        ),
        World(
            "clock",
            (_one("{messages: 5, per: 60s}", lifetime="30d", warn_after="1d"),),
            warn_after_ns=DAY_NS,
            steps_s=(1, 400, YEAR_S),
            weights={"clock": 3, "crash": 2},
            calm_s=40_000.0,
        ),
        World(
            "months",
            (
                _one(
                    "{messages: 300, per: 30d}, {messages: 40, per: 1d}, {messages: 9, per: 1h}",
                    lifetime="366d",
                    retry="15m, max: 8h",
                ),
            ),
            messages=40,
            minutes=100 * 1_440.0,
            look_s=3_600.0,
            again_s=900.0,
            retry_max_s=8 * 3_600.0,
            lasting_s=(60.0, 5_000.0, 20_000.0),
            downs_s=(0.0, 100.0, 40_000.0, 86_400.0),
            steps_s=(1, 400, 60 * 86_400),
            away_s=(30, 4_000, 40_000),
            faults_s=(10.0, 4_000.0, 20_000.0),
            weights={"crash": 6, "clock": 5, "feel": 6, "disturb": 3},
            calm_s=200 * 86_400.0,
        ),
        World(
            "reports asked for",
            (_one("{messages: 7, per: 20s}"),),
            senders=("s{n}@here.test", "s{n}@here.test", "bad-s{n}@here.test", "later-s{n}@here.test", ""),
            notifies=("", "", "NEVER", "SUCCESS", "SUCCESS,FAILURE", "FAILURE", "DELAY", "FAILURE,DELAY"),
            rets=("", "FULL", "HDRS"),
            moods=(
                *(Mood.OFFERS_NO_DSN, Mood.OFFERS_NO_DSN, Mood.REFUSES_DSN, Mood.HANGS_UP),
                *(Mood.DROPS, Mood.GREYLIST, Mood.DOWN),
            ),
            weights={"feel": 5},
        ),
        _UNMOVED(
            "reports an hour",
            (_one("{messages: 50, per: 10s}", reports_per_hour="3"),),
            kinds=("bad", "bad", "ok"),
            reports_per_hour=3,
            notifies=("", "", "SUCCESS,FAILURE"),
            weights={"crash": 2, "disturb": 0},
            look_s=20.0,
            messages=12,
            calm_s=5 * 3_600.0,
        ),
        World(
            "warned and expired",
            (_one("{messages: 20, per: 20s}", lifetime="8m", warn_after="90s"),),
            kinds=("ok", "later", "never", "never", "bad"),
            lifetime_ns=8 * MINUTE_NS,
            warn_after_ns=90 * SECOND_NS,
            notifies=_LATE,
            moods=(),
            acts=("retry",),
            messages=6,
            weights={"crash": 2, "disturb": 0},
            calm_s=1_000.0,
        ),
        World(
            "expired and paused",
            (_one("{messages: 20, per: 20s}", lifetime="8m"),),
            kinds=("ok", "later", "never", "never"),
            lifetime_ns=8 * MINUTE_NS,
            moods=_QUOTAS,
            acts=(),
            messages=5,
            minutes=9.0,
            look_s=5.0,
            weights={"feel": 5, "crash": 0, "disturb": 0},
            calm_s=2_000.0,
        ),
        _UNMOVED(
            "warned and waiting",
            (_one("{messages: 2, per: 60s}", warn_after="70s"),),
            kinds=("ok",),
            warn_after_ns=70 * SECOND_NS,
            warns_of_waiting=True,
            notifies=_LATE,
            messages=30,
            look_s=5.0,
            weights={"crash": 0, "disturb": 0},
            calm_s=4_000.0,
        ),
        World(
            "one sender for all",
            (_one("{messages: 7, per: 20s}", rest="routes: [{upstreams: [isp], rewrite: news@isp.test}]\n"),),
            rewrite="news@isp.test",
            notifies=("", "SUCCESS"),
            weights={"feel": 3},
        ),
        _UNMOVED(
            "echoes",
            (_one("{messages: 12, per: 20s}"),),
            subjects=(
                *("Hello", "Daily sending quota exceeded"),
                *("Your account is blocked", "try again in 2 hours"),
            ),
            kinds=(
                *("ok", "later", "junk", "slow", "bad"),
                *("bad-daily-sending-quota-exceeded-", "bad-too-many-messages-"),
            ),
            senders=("s{n}@here.test", "account-blocked-{n}@here.test", "rate-limit-exceeded@here.test"),
            domains=("x.test", "spam-limit.test"),
            weights={"crash": 2, "disturb": 0},
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
        _UNMOVED(
            "may not send",
            (_one("{messages: 9, per: 20s}", lifetime="1h"),),
            senders=("s{n}@here.test", "s{n}@here.test", "alien-s{n}@here.test"),
            kinds=("ok",),
            lifetime_ns=60 * MINUTE_NS,
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
            "hostile",
            (_one("{messages: 7, per: 20s}, {connections: 30, per: 60s}"),),
            weights={"feel": 8},
        ),
        World(
            "operator",
            (_one("{messages: 4, per: 20s}"),),
            acts=("hold", "release", "retry", "bounce", "delete", "pause", "resume"),
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
            "disk",
            (_one("{messages: 7, per: 20s}"),),
            lines=(1, 300, 20_000),
            messages=10,
            moods=(Mood.HANGS_UP,),
            weights={"disturb": 4, "feel": 1},
        ),
        World(
            "two relays",
            (_one("{messages: 5, per: 60s}"),),
            relays=2,
            clocks=("stop",),
            weights={"clock": 2, "crash": 2},
        ),
    )
}
