"""Parses bytes into a policy, or into all its faults, each at its place."""

from ipaddress import ip_network
from pathlib import Path

import pytest

from relay.policy.document import MAX_BYTES
from relay.policy.source import PolicyError, read_policy
from tests.unit.policy.examples import INTERFACE, SMALL, only_fault, parse, places, with_upstream

SECOND_NS = 10**9


def test_the_documented_policy_loads() -> None:
    policy = parse(INTERFACE)
    (listen,), isp = policy.listen, policy.upstreams["isp"]
    assert (policy.spool, policy.default_upstream) == (Path("/etc/relay/var/spool"), "isp")
    assert (str(listen.address), str(policy.http)) == ("127.0.0.1:2525", "127.0.0.1:9725")
    assert listen.clients == (ip_network("127.0.0.0/8"), ip_network("::1/128"))
    assert (isp.host, isp.port, isp.tls, isp.connections) == ("smtp.example.net", 587, "starttls", 4)
    assert isp.auth is not None
    assert (isp.ca_file, isp.auth.password_file) == (Path("/etc/ssl/isp.pem"), Path("/etc/relay/secrets/isp"))
    assert [limit.label for limit in isp.limits] == ["8 messages per 1m", "10000 recipients per 24h"]
    assert policy.history_path("isp") == Path("/etc/relay/var/history/isp")
    assert (policy.retry.min_ns, policy.retry.warn_after_ns) == (300 * SECOND_NS, 4 * 3600 * SECOND_NS)


def test_all_faults_of_keys_are_reported_at_once_and_in_order() -> None:
    text = """\
spol: ./var
listen:
  - address: 127.0.0.1:2525
    adress: 127.0.0.1:25
    timeouts: {comand: 5m, content: 5}
upstreams:
  isp:
    host: smtp.example.net
    host: smtp.example.org
    tls: sometimes
    limits: [{messages: -3, per: soon}, {per: 1m}]
  Second: {port: 70000}
  third: smtp.example.com
retry: {min: 5h, max: 4h, lifetime: 0s}
"""
    assert places(text) == [
        *("1:1 ?", "1:1 spool", "4:5 listen[0].?", "5:16 listen[0].timeouts.?"),
        *("5:37 listen[0].timeouts.content", "9:5 upstreams.isp.host", "10:10 upstreams.isp.tls"),
        *("11:25 upstreams.isp.limits[0].messages", "11:34 upstreams.isp.limits[0].per"),
        *("11:41 upstreams.isp.limits[1]", "12:3 upstreams.?", "12:11 upstreams.?.host"),
        *("12:11 upstreams.?.limits", "12:18 upstreams.?.port", "13:10 upstreams.third"),
        "14:37 retry.lifetime",
    ]


def test_an_upstream_must_write_limits_even_if_it_has_none() -> None:
    """A file that is cut off before the limits must not be a policy without limits."""
    fault = only_fault(SMALL.partition("    limits:")[0])

    assert (fault.line, fault.key) == (7, "upstreams.isp.limits")
    assert "limits: []" in fault.message
    assert parse(with_upstream("provider: ses")).upstreams["isp"].limits
    # A key that takes a boolean accepts the words of YAML 1.1 too.
    for word, meaning in ("no", False), ("Off", False), ("yes", True):
        text = with_upstream("host: smtp.example.net", f"pipelining: {word}")
        assert parse(text).upstreams["isp"].pipelining is meaning


def test_a_policy_is_a_mapping() -> None:
    for text in "[]", "just text", "8", "null", "---\n...\n":
        assert (only_fault(text).key, only_fault(text).message) == ("policy", "expected a mapping of keys")


def test_paths_are_relative_to_the_folder_of_the_link_not_of_its_target(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "policy.yaml").write_text(SMALL)
    link = tmp_path / "policy.yaml"
    link.symlink_to("real/policy.yaml")
    assert read_policy(link).spool == tmp_path / "spool"


def test_a_policy_that_cannot_be_read_is_one_fault(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(SMALL.encode() + b"#" * MAX_BYTES)
    for path, reason in (
        (tmp_path / "missing", "cannot read it: No such file or directory"),
        (tmp_path, "cannot read it: it is not a regular file"),
        (tmp_path / "large", f"the file is larger than {MAX_BYTES} bytes"),
    ):
        with pytest.raises(PolicyError) as caught:
            read_policy(path)
        assert str(caught.value) == f"{path}:1:1: policy: {reason}"


def test_a_spool_in_a_database_needs_nothing_but_its_url() -> None:
    policy = parse(SMALL.replace("spool: spool", "spool: postgresql://relay@db.example/relay"))

    assert (policy.spool, policy.storage.engine) == (Path("/var/lib/relay/spool"), "postgresql")
    assert places(SMALL.replace("spool: spool", "spool: {postgresql: 5}")) == ["1:21 spool.postgresql"]
