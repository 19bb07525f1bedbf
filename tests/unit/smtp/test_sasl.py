"""SASL: a client that knows the password logs in at our own server, and no other one does.

CRAM-MD5 logs in at the tests' own smarthost, in tests/unit/upstream/test_login.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.smtp.sasl import EXCHANGES, Credentials, challenge_reply, responses, said_in

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


def heard(mechanism: str, client: Credentials) -> Credentials:
    """Let a client log in at a server; return what the server heard."""
    exchange = EXCHANGES[mechanism]()
    challenge = next(exchange)
    said = iter(responses(mechanism, client).due)
    while True:
        response = next(said)(challenge_reply(challenge).removeprefix("334 "))
        try:
            challenge = exchange.send(said_in(response))
        except StopIteration as end:
            proof: Credentials = end.value
            return proof


@pytest.mark.parametrize("mechanism", EXCHANGES)
@given(one=st.tuples(WORDS, WORDS), other=st.tuples(WORDS, WORDS))
def test_only_the_same_credentials_are_proven(
    mechanism: str, one: tuple[str, str], other: tuple[str, str]
) -> None:
    account = Credentials(*one)

    assert account.are_proven_by(heard(mechanism, account))
    assert account.are_proven_by(heard(mechanism, Credentials(*other))) == (one == other)
    assert other[1] not in repr(Credentials(*other)) or len(other[1]) < 8


@pytest.mark.parametrize("credentials", [Credentials("a\0b", "c"), Credentials("a", "b\0c")])
@pytest.mark.parametrize("mechanism", [*EXCHANGES, "CRAM-MD5"])
def test_nul_is_not_carried(mechanism: str, credentials: Credentials) -> None:
    with pytest.raises(ValueError, match="NUL"):
        responses(mechanism, credentials)
