"""A status snapshot with something in every part, and waiting messages."""

from dataclasses import replace

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.queue.routes import Because
from relay.status.snapshot import (
    CertificateStatus,
    Condition,
    DiskStatus,
    HostStatus,
    LimitStatus,
    MessageView,
    PolicyStatus,
    QueueCounts,
    QueueState,
    RecipientView,
    RouteStatus,
    Snapshot,
    UpstreamState,
    UpstreamStatus,
)
from tests.fakes.clock import START_WALL_NS

AT_NS = START_WALL_NS
FIRST = QueueId("0000000000000001")
SECOND = QueueId("0000000000000002")


def a_limit(*, used: int = 8, count: int = 8, opens_in_s: int | None = 20) -> LimitStatus:
    opens_at_ns = None if opens_in_s is None else AT_NS + opens_in_s * SECOND_NS
    label = f"{count} messages per 1m"
    return LimitStatus("isp", label, "messages", used, count, 60 * SECOND_NS, opens_at_ns)


def an_upstream(
    *,
    state: UpstreamState = UpstreamState.OPEN,
    because: str = "",
    paused_until_ns: int | None = None,
    limits: tuple[LimitStatus, ...] | None = None,
) -> UpstreamStatus:
    return UpstreamStatus(
        name="isp",
        host="smtp.example.net",
        port=587,
        state=state,
        paused_until_ns=paused_until_ns,
        paused_because=because,
        connections_open=3,
        connections_idle=1,
        limits=(a_limit(),) if limits is None else limits,
        waiting_messages=400,
        waiting_recipients=800,
        in_flight=2,
        drained_at_ns=None if state is UpstreamState.STOPPED else AT_NS + 50 * 60 * SECOND_NS,
        held_by="limit 8 messages per 1m",
        certificate_ends_at_ns=AT_NS + 60 * 86_400 * SECOND_NS,
        client_certificate_ends_at_ns=AT_NS + 30 * 86_400 * SECOND_NS,
    )


def a_snapshot(
    *,
    upstream: UpstreamStatus | None = None,
    refusing_because: str = "",
    policy: PolicyStatus | None = None,
) -> Snapshot:
    return Snapshot(
        at_ns=AT_NS,
        version="0.1.0",
        hostname="relay.example.org",
        condition=Condition.RUNNING,
        started_at_ns=AT_NS - 3_720 * SECOND_NS,
        refusing_because=refusing_because,
        upstreams=(upstream or an_upstream(),),
        queue={
            QueueState.WAITING: QueueCounts(400, 800, 1_000_000, 90 * SECOND_NS),
            QueueState.DEFERRED: QueueCounts(3, 4, 5_000, 3_600 * SECOND_NS),
            QueueState.CORRUPT: QueueCounts(1, 0, 17, 0),
        },
        totals={"accepted": 1_000, "relayed": 190, "bounced": 4, "expired": 1, "deleted": 1},
        policy=policy or PolicyStatus("ab" * 32, AT_NS - 60 * SECOND_NS),
        disk=DiskStatus(7 * 2**30, 12_345),
        certificates=(CertificateStatus("127.0.0.1:2525", AT_NS + 90 * 86_400 * SECOND_NS),),
        hosts=(HostStatus("mx2.example.net", 7, 3000.5, {"isp": 12.25}),),
    )


def a_message(
    *, reverse_path: str = "list@example.org", reason: str = "limit 8 messages per 1m"
) -> MessageView:
    return MessageView(
        queue_id=FIRST,
        state=QueueState.WAITING,
        size_bytes=1_500,
        arrival_at_ns=AT_NS - 90 * SECOND_NS,
        age_ns=90 * SECOND_NS,
        reverse_path=reverse_path,
        recipients_left=2,
        recipients=("ann@example.net", "bob@example.com"),
        reason=reason,
        next_attempt_at_ns=None,
        eta_at_ns=AT_NS + 20 * SECOND_NS,
        upstream="isp",
        held_by="limit 8 messages per 1m",
    )


def a_detail(message: MessageView) -> MessageView:
    return replace(
        message,
        client="mail.example.org[192.0.2.1]",
        helo="mail.example.org",
        protocol="ESMTPSA",
        user="ann",
        recipient_statuses=(
            RecipientView("ann@example.net", "to do"),
            RecipientView("bob@example.com", "to do"),
            RecipientView("eve@example.com", "bounced", "550 5.1.1 no such user"),
        ),
        header="Subject: hello\r\n\tfolded\r\nX-Trick: \x1b[2J",
    )


def routes() -> tuple[RouteStatus, ...]:
    """Return four routes: one fails over, one is down, one will fail over, and one spills."""
    since_ns, until_ns = AT_NS - 780 * SECOND_NS, AT_NS + 240 * SECOND_NS
    mail, all_down = ("user", "sender, header"), Because.ALL_DOWN
    return (
        RouteStatus(
            (1, 3), mail, ("isp", "ses"), "ses", Because.FAILOVER, "isp", since_ns, stands={"ses": 1200}
        ),
        RouteStatus((2,), ("client",), ("ses", "isp"), "ses", all_down, since_at_ns=since_ns),
        RouteStatus((4,), ("recipient_domain",), ("m365", "isp"), "m365", until_at_ns=until_ns),
        RouteStatus(
            (5,),
            ("all other mail",),
            ("isp", "m365", "ses"),
            "isp",
            since_at_ns=since_ns,
            spills_to=("m365",),
            stands={"isp": 3, "m365": 400},
        ),
    )
