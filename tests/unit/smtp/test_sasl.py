"""SASL: what a client says proves to a server that it knows the password, and nothing else does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.smtp import replies
from relay.smtp.commands import Refused
from relay.smtp.sasl import (
    EXCHANGES,
    Credentials,
    Digest,
    MalformedProof,
    Proof,
    decode_response,
    encode_challenge,
    responses,
)

MECHANISMS = sorted(EXCHANGES)
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


def proof_of(mechanism: str, client: Credentials) -> Proof:
    """Let a client log in at a server; return what the server heard."""
    exchange = EXCHANGES[mechanism]("1@host")
    challenge = next(exchange)
    said = iter(responses(mechanism, client).due)
    while True:
        response = next(said)(encode_challenge(challenge).removeprefix("334 "))
        try:
            challenge = exchange.send(decode_response(response))
        except StopIteration as end:
            proof: Proof = end.value
            return proof


@pytest.mark.parametrize("mechanism", MECHANISMS)
@given(one=st.tuples(WORDS, WORDS), other=st.tuples(WORDS, WORDS))
def test_only_the_same_credentials_are_proven(
    mechanism: str, one: tuple[str, str], other: tuple[str, str]
) -> None:
    account = Credentials(*one)

    assert account.are_proven_by(proof_of(mechanism, account))
    assert account.are_proven_by(proof_of(mechanism, Credentials(*other))) == (one == other)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_nothing_shows_a_secret(mechanism: str) -> None:
    account = Credentials("mjd", "open sesame")
    proof = proof_of(mechanism, account)

    assert "sesame" not in repr(account) + repr(proof)
    if isinstance(proof, Digest):
        assert proof.digest not in repr(proof)


@pytest.mark.parametrize("credentials", [Credentials("a\0b", "c"), Credentials("a", "b\0c")])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_nul_is_not_carried(mechanism: str, credentials: Credentials) -> None:
    with pytest.raises(ValueError, match="NUL"):
        responses(mechanism, credentials)


@pytest.mark.parametrize(
    ("line", "reply"),
    [(b"*", replies.AUTH_CANCELLED), (b"?", replies.AUTH_MALFORMED), (b"YQ", replies.AUTH_MALFORMED)],
)
def test_a_line_that_is_no_response_is_refused(line: bytes, reply: str) -> None:
    with pytest.raises(Refused) as refused:
        decode_response(line)

    assert refused.value.reply == reply


@pytest.mark.parametrize(
    ("mechanism", "message"), [("PLAIN", b"a\0b"), ("PLAIN", b"\0\xff\0b"), ("LOGIN", b"\xff")]
)
def test_a_message_of_no_mechanism_is_malformed(mechanism: str, message: bytes) -> None:
    exchange = EXCHANGES[mechanism]("")
    next(exchange)

    with pytest.raises(MalformedProof):
        exchange.send(message)


def test_a_challenge_that_is_not_base64_is_no_challenge() -> None:
    (answer,) = responses("CRAM-MD5", Credentials("a", "b")).due

    with pytest.raises(ValueError, match="challenge is not base64"):
        answer("x")
