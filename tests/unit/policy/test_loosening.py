"""Which edits allow more, and how long each has to rest."""

import pytest

from relay.policy.document import read_document
from relay.policy.loosening import (
    Degree,
    Loosening,
    loosening,
)
from tests.unit.policy.examples import SMALL, with_upstream
from tests.unit.policy.reading import parse

HOST = "host: smtp.example.net"
LIMIT = "limits: [{messages: 8, per: 1m}]"
TWO = "limits: [{messages: 8, per: 1m}, {recipients: 100, per: 1h}]"


def degree(old: str, new: str) -> Degree:
    return found(old, new).degree


def found(old: str, new: str) -> Loosening:
    return loosening(parse(old), parse(new), read_document(new.encode()).unfinished())


def upstream(*lines: str) -> str:
    return with_upstream(HOST, *lines)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (SMALL, SMALL),
        (SMALL, SMALL + "# a comment\n"),
        (SMALL, upstream("limits: [{messages: 7, per: 1m}]")),
        (SMALL, upstream("limits: [{messages: 8, per: 2m}]")),
        (SMALL, upstream(TWO)),
        (SMALL, upstream(LIMIT, "guard: 1s")),
        (upstream("limits: [{messages: 8, per: 1m, for_each: sender}]"), SMALL),
        (upstream(), SMALL),
        (SMALL, SMALL.replace("isp:", "other:") + "    history: /etc/relay/history/smtp.example.net\n"),
        # Of what a restart takes up nothing is in force.
        (SMALL, SMALL.replace("spool: spool", "spool: other").replace("127.0.0.0/8", "10.0.0.0/8")),
    ],
)
def test_an_edit_that_allows_no_more_is_known(old: str, new: str) -> None:
    assert degree(old, new) is Degree.NOTHING


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        (SMALL, upstream("limits: [{messages: 9, per: 1m}]"), "upstreams.isp.limits"),
        (SMALL, upstream("limits: [{messages: 8, per: 59s}]"), "upstreams.isp.limits"),
        (SMALL, upstream("limits: [{recipients: 8, per: 1m}]"), "upstreams.isp.limits"),
        (SMALL, upstream("limits: [{messages: 8, per: 1m, for_each: client}]"), "upstreams.isp.limits"),
        (SMALL, upstream("limits: []"), "upstreams.isp.limits"),
        (SMALL, upstream(LIMIT, "guard: 999ms"), "upstreams.isp.guard"),
        (SMALL, upstream(LIMIT, "connections: 5"), "upstreams.isp.connections"),
        (SMALL, SMALL + "  two: {host: b.example.net, limits: []}\n", "upstreams.two"),
        (SMALL, SMALL + "retry: {min: 1m}\n", "retry"),
    ],
)
def test_an_edit_that_allows_more_rests(old: str, new: str, key: str) -> None:
    assert found(old, new) == Loosening(Degree.MORE, (key,))
