"""The proof that every reply answered the command that it was taken for.

An unasked reply may arrive just behind the next command; then each later reply is taken for the
answer to its neighbour.  A `250` or a `550` does not tell which command it answers.
Two replies do: the reply to a second EHLO, which names the host and its extensions over several
lines as the first one did (RFC 5321, 4.1.4 allows it, and it resets like RSET), and 221 to QUIT.
If one of them answers its own command, as many replies came as commands were sent, so each
command had its own.
Costs: a round trip, unless an RSET was due anyway.  The connection too, if the second EHLO is not
answered like the first, or MOST_HELLOS were sent.
"""

from dataclasses import dataclass

from relay.smtp.reply import Phase, Reply
from relay.upstream.protocol import Desynchronised, StrictProtocol

MOST_HELLOS = 3
"""Of one connection.  Sendmail answers more slowly each time from the third on (MAXHELOCOMMANDS)."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Our greeting, and the reply by which a second one is recognised."""

    line: bytes
    reply: Reply

    def is_answered_by(self, reply: Reply) -> bool:
        """Whether a reply can only be one to this greeting; never of one line, which any 250 may be."""
        return reply.code == 250 and len(reply.lines) > 1 and reply.lines[0] == self.reply.lines[0]


class StepProof:
    def __init__(self, protocol: StrictProtocol, hello: Hello | None) -> None:
        """Without `hello` only QUIT is left."""
        self._protocol = protocol
        self._hello = hello
        self._hellos = MOST_HELLOS

    async def prove(self, timeout_s: float) -> None:
        """Return if the replies are in step; the connection is then reset, or closed.

        Raises Desynchronised if they are not, and another Broken if that cannot be known.
        """
        if self._hello is not None and self._hellos:
            self._hellos -= 1
            reply = await self._protocol.command(self._hello.line, Phase.EHLO, timeout_s)
            if self._hello.is_answered_by(reply):
                return
        reply = await self._protocol.command(b"QUIT", Phase.QUIT, timeout_s)
        if reply.code != 221:
            raise Desynchronised(f"QUIT was not answered by 221 but by {reply}")
        self._protocol.abort()
