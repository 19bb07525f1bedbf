"""What an outcome means for the account, the sender and the message: decided, carried out, settled."""

from relay.queue.routes import Because
from relay.sender.attempt import Attempt
from relay.sender.known_upstream import KnownUpstream
from relay.sender.settling import AccountBacklog
from relay.telemetry.telemetry import Telemetry
from relay.verdicts.decision import Decision, Standing, decide
from relay.verdicts.outcome import Outcome


class Consequences:
    def __init__(
        self, upstream: str, backlog: AccountBacklog, known: KnownUpstream, telemetry: Telemetry
    ) -> None:
        self._upstream = upstream
        self._line, _, self._settling, self._queue = backlog
        self._senders = self._line.sender_pauses
        self._pausing, self._shield, self._offers = known.pausing, known.shield, known.offers
        self._metrics = telemetry.metrics

    async def settle(self, attempt: Attempt, outcome: Outcome) -> None:
        """Settle durably what an attempt came to."""
        decision = decide(outcome, self._standing(attempt), self._settling.terms, self._shield)
        began_ns = 0
        if attempt.reservation is not None:
            began_ns = attempt.reservation.reserved_at_ns
            self._metrics.attempted(self._upstream, decision.outcome, attempt.took_ns)
            choice = attempt.queued.choice
            if choice.instead_of and decision.is_relayed:
                self._metrics.count(
                    "relay_route_diverted_messages_total", self._upstream, choice.instead_of, choice.because
                )
            if outcome.is_ambiguous:
                # Another upstream would relay it twice if this one has it.
                self._queue.stay_unknown(attempt.queued, attempt.reservation.deadline_ns)
        if outcome.is_dsn_refused:
            self._offers.refused_dsn()
        self._pausing.feel(decision.outcome, began_ns)
        self._feel_sender(attempt, decision)
        await self._settling.settle(self._upstream, attempt, decision)

    def _standing(self, attempt: Attempt) -> Standing:
        queued, pausing, sender = attempt.queued, self._pausing, attempt.queued.sender
        arrived_ns, ended_ns = queued.arrived_at_ns, attempt.ended_ns
        rests = self._senders.rests_of(sender)
        paused_ns = pausing.paused_ns(arrived_ns, ended_ns, queued.past.rested)
        return Standing(
            queue_id=queued.queue_id,
            recipients=attempt.message.envelope.recipients,
            left=attempt.left,
            asked=attempt.indices,
            tried=queued.past.tried,
            refusals=queued.past.refusals,
            in_a_row=pausing.state.in_a_row,
            sender=sender,
            span_ns=(attempt.reservation.reserved_at_ns if attempt.reservation else ended_ns, ended_ns),
            late_ns=ended_ns - arrived_ns,
            paused_ns=paused_ns,
            resting_ns=pausing.paused_ns(arrived_ns, ended_ns, (*rests, *queued.past.rested))
            if rests
            else paused_ns,
            is_well=pausing.is_well,
            is_sender_alone=self._senders.is_alone(sender, pausing.relayed_from_ns),
            is_probe=queued.choice.because is Because.PROBE,
        )

    def _feel_sender(self, attempt: Attempt, decision: Decision) -> None:
        """Pause the mail of a sender that the upstream refuses; go on once it takes some."""
        queued, refusal = attempt.queued, decision.sender_rests
        if refusal is not None:
            until_ns = self._senders.begin(
                queued.sender,
                attempt.ended_ns,
                refusal.text,
                self._pausing.relayed_from_ns,
                asked_ns=decision.rest_ns,
                ages=refusal.is_doubted,
            )
            self._pausing.tell_sender(queued.sent_reverse_path, refusal, until_ns - attempt.ended_ns)
        elif decision.is_relayed:
            self._line.trust_sender(queued.sender, attempt.ended_ns)
