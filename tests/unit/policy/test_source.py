"""From bytes to a policy, or to all that is wrong with them, each at its place."""

from ipaddress import ip_network
from pathlib import Path

import pytest

from relay.policy.document import MAX_BYTES
from relay.policy.faults import MOST_FAULTS, PolicyError
from relay.policy.model import DAY_NS, Mechanism, SpoolEngine, SpoolSettings, Tls
from relay.policy.source import read_policy
from relay.policy.units import HostPort
from tests.fakes.odd_files import ODD_FILES
from tests.unit.policy.examples import INTERFACE, SMALL, with_upstream
from tests.unit.policy.reading import faults, only_fault, parse, places

SECOND_NS = 10**9


def test_the_policy_of_the_interface_loads() -> None:
    policy = parse(INTERFACE)
    assert policy.spool == Path("/etc/relay/var/spool")
    (listen,) = policy.listen
    assert listen.address == HostPort("127.0.0.1", 2525)
    assert listen.clients == (ip_network("127.0.0.0/8"), ip_network("::1/128"))
    assert policy.http == HostPort("127.0.0.1", 9725)
    assert policy.default_upstream == "isp"
    isp = policy.upstreams["isp"]
    assert (isp.host, isp.port, isp.tls, isp.connections) == ("smtp.example.net", 587, Tls.STARTTLS, 4)
    assert isp.ca_file == Path("/etc/ssl/isp.pem")
    assert isp.auth is not None
    assert isp.auth.password_file == Path("/etc/relay/secrets/isp")
    assert isp.auth.mechanism is Mechanism.AUTO
    assert [(limit.count, limit.unit, limit.per_ns) for limit in isp.limits] == [
        (8, "messages", 60 * SECOND_NS),
        (10000, "recipients", 86400 * SECOND_NS),
    ]
    assert policy.history_path("isp") == Path("/etc/relay/var/history/isp")
    assert policy.retry.min_ns == 300 * SECOND_NS
    assert policy.retry.warn_after_ns == 4 * 3600 * SECOND_NS


@pytest.mark.parametrize(
    ("written", "engine"),
    [
        ("spool", SpoolEngine.MAILDIR),
        ("{path: spool}", SpoolEngine.MAILDIR),
        ("{path: ./spool, engine: maildir}", SpoolEngine.MAILDIR),
        ("{engine: log, path: /etc/relay/spool}", SpoolEngine.LOG),
    ],
)
def test_a_spool_is_a_path_or_a_path_and_an_engine(written: str, engine: SpoolEngine) -> None:
    policy = parse(SMALL.replace("spool: spool", f"spool: {written}"))
    assert policy.storage == SpoolSettings(path=Path("/etc/relay/spool"), engine=engine)
    assert policy.spool == Path("/etc/relay/spool")


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("''", "p.yaml:1:8: spool: expected a path, got none"),
        ("[a]", "p.yaml:1:8: spool: expected a path, got a list"),
        ("{engine: log}", "p.yaml:1:8: spool.path: this key is required"),
        ("{path: 1}", "p.yaml:1:15: spool.path: expected a path, got 1"),
        (
            "{path: a, engine: mbox}",
            "p.yaml:1:26: spool.engine: expected maildir or log, got 'mbox'",
        ),
        ("{path: a, engin: log}", "p.yaml:1:18: spool.engin: unknown key; did you mean engine?"),
    ],
)
def test_a_wrong_spool_is_told_where_it_is_wrong(written: str, told: str) -> None:
    assert str(only_fault(SMALL.replace("spool: spool", f"spool: {written}"))) == told


def test_the_first_upstream_is_the_default_whatever_its_name() -> None:
    assert parse(SMALL + "  aaa: {host: a.example.net}\n").default_upstream == "isp"


@pytest.mark.parametrize(
    ("lifetime", "warn_after_ns"),
    [
        ("1h", 1800 * SECOND_NS),
        ("4h", 7200 * SECOND_NS),
        ("8h", 14400 * SECOND_NS),
        ("9d", 14400 * SECOND_NS),
    ],
)
def test_an_unwritten_warning_gives_way_to_lifetime(lifetime: str, warn_after_ns: int) -> None:
    policy = parse(f"{SMALL}retry: {{lifetime: {lifetime}, max: 10m}}\n")

    assert policy.retry.warn_after_ns == warn_after_ns


def test_null_switches_a_warning_off() -> None:
    assert parse(SMALL + "retry: {warn_after: null, lifetime: 1h, max: 10m}\n").retry.warn_after_ns is None


def test_by_default_nothing_adapts_and_reports_are_limited() -> None:
    assert (parse(SMALL).upstreams["isp"].adapt, parse(SMALL).reports.per_hour) == (None, 60)

    other = parse(with_upstream("host: smtp.example.net", "adapt: tighten") + "reports: {per_hour: null}\n")

    assert (other.upstreams["isp"].adapt, other.reports.per_hour) == ("tighten", None)


def test_what_ended_is_kept_for_a_week_unless_its_owner_says_otherwise() -> None:
    kept = parse(SMALL).recent
    assert kept is not None
    assert (kept.keep_ns, kept.most_bytes) == (7 * DAY_NS, 64 << 20)

    other = parse(SMALL + "recent: {keep: 12h, most: 1M}\n").recent
    assert other is not None
    assert (other.keep_ns, other.most_bytes) == (DAY_NS // 2, 1 << 20)
    assert parse(SMALL + "recent: null\n").recent is None
    assert only_fault(SMALL + "recent: {most: 1023k}\n").message == (
        "expected at least 1M, or `recent: null` to keep nothing"
    )


def test_no_limit_adapts_upwards_and_no_hour_lacks_reports() -> None:
    text = with_upstream("host: smtp.example.net", "adapt: loosen") + "reports: {per_hour: 0}\n"

    assert [str(fault) for fault in faults(text)] == [
        "p.yaml:8:12: upstreams.isp.adapt: expected tighten, got 'loosen'",
        "p.yaml:9:21: reports.per_hour: expected a whole number above zero, got 0",
    ]


def test_a_fault_is_file_line_column_key_message() -> None:
    fault = only_fault(SMALL.replace("messages: 8", "messages: -3"))
    assert str(fault) == (
        "p.yaml:9:20: upstreams.isp.limits[0].messages: expected a whole number above zero, got -3"
    )


def test_all_faults_are_told_at_once_and_in_order() -> None:
    text = """\
spol: ./var
listen:
  - address: 0.0.0.0:2525
    adress: 127.0.0.1:25
    processes: many
    timeouts: {comand: 5m, content: 5}
    clients: 127.0.0.1
upstreams:
  isp:
    host: smtp.example.net
    host: smtp.example.org
    port: '587'
    tls: sometimes
    auth: {user: 12345}
    limits:
      - {messages: -3, per: 1m}
      - {recipients: 0, per: soon}
      - {per: 1m}
      - {messages: 1, recipients: 1, per: 1m}
      - {messages: 1}
  Second: {port: 70000}
  third: smtp.example.com
retry: {min: 5h, max: 4h, lifetime: 0s}
practice: null
"""
    assert places(text) == [
        "1:1 spol",
        "1:1 spool",
        "4:5 listen[0].adress",
        "5:16 listen[0].processes",
        "6:16 listen[0].timeouts.comand",
        "6:37 listen[0].timeouts.content",
        "7:14 listen[0].clients",
        "11:5 upstreams.isp.host",
        "12:11 upstreams.isp.port",
        "13:10 upstreams.isp.tls",
        "14:11 upstreams.isp.auth",
        "14:18 upstreams.isp.auth.user",
        "16:20 upstreams.isp.limits[0].messages",
        "17:22 upstreams.isp.limits[1].recipients",
        "17:30 upstreams.isp.limits[1].per",
        "18:9 upstreams.isp.limits[2]",
        "19:35 upstreams.isp.limits[3].recipients",
        "20:9 upstreams.isp.limits[4].per",
        "21:3 upstreams.Second",
        "21:11 upstreams.Second.host",
        "21:18 upstreams.Second.port",
        "22:10 upstreams.third",
        "23:37 retry.lifetime",
    ]


@pytest.mark.parametrize(
    ("unknown", "suggestion"),
    [
        ("spool_", "did you mean spool?"),
        ("upstream", "did you mean upstreams?"),
        ("Host-Name", "did you mean hostname?"),
        (
            "zzz",
            (
                "known here: hostname, http, lanes, listen, notify, practice, recent, reports, retry, "
                "routes, spool, upstreams"
            ),
        ),
    ],
)
def test_an_unknown_key_is_an_error_with_a_suggestion(unknown: str, suggestion: str) -> None:
    fault = only_fault(f"{SMALL}{unknown}: 1\n")
    assert (fault.line, fault.column, fault.key) == (10, 1, unknown)
    assert fault.message == f"unknown key; {suggestion}"


def test_a_suggestion_is_from_the_same_section() -> None:
    fault = only_fault(SMALL.replace("isp:", "auth:") + "    prt: 25\n")
    assert fault.key == "upstreams.auth.prt"
    assert fault.message == "unknown key; did you mean port?"


def test_the_names_of_fields_are_no_keys() -> None:
    fault, missing = sorted(faults(SMALL.replace("per: 1m", "per_ns: 1m")), key=lambda fault: -fault.column)
    assert fault.message == "unknown key; did you mean per?"
    assert missing.message == "this key is required"


def test_a_duplicate_key_names_both_positions() -> None:
    fault = only_fault(SMALL + "spool: other\n")
    assert str(fault) == "p.yaml:10:1: spool: duplicate key; the first is at line 1, column 1"


def test_a_missing_key_stands_where_its_section_does() -> None:
    fault = only_fault(SMALL.replace("    host: smtp.example.net\n", ""))
    assert str(fault) == "p.yaml:7:5: upstreams.isp.host: this key is required"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("port: '587'", "expected a whole number from 1 to 65535, got '587'"),
        ("port: 0587", "expected a whole number from 1 to 65535, got '0587'"),
        ("port: true", "expected a whole number from 1 to 65535, got true"),
        ("port:", "expected a whole number from 1 to 65535, got nothing"),
        ("port: [1]", "expected a whole number from 1 to 65535, got a list"),
        ("connections: 0", "expected a whole number from 1 to 1000, got 0"),
        ("max_messages: -1", "expected a whole number above zero, got -1"),
        ("max_messages: 1e3", "expected a whole number above zero, got '1e3'"),
        ("max_messages: 10000000000", "expected at most 1000000000, got 10000000000"),
        ("tls: 'no'", "expected starttls, implicit or none, got 'no'"),
        ("tls:", "expected starttls, implicit or none, got nothing"),
        ("guard: 1", "expected a duration with a unit, such as 30s, 5m, 4h or 5d, got 1"),
        ("guard: 22:22", "expected a duration with a unit, such as 30s, 5m, 4h or 5d, got '22:22'"),
        ("guard: 0s", "a duration must be above zero and at most 366d, got '0s'"),
        ("idle: -5s", "expected a duration with a unit, such as 30s, 5m, 4h or 5d, got '-5s'"),
        ("history: ''", "expected a path, got none"),
        ("history: 5", "expected a path, got 5"),
        ("history: ~/history", "~ is not expanded; write the whole path"),
        ("limits: {messages: 1, per: 1m}", "expected a list, got a mapping"),
        ("limits: [5]", "expected a mapping of keys, got a number"),
        ("auth: hunter2", "expected a mapping of keys, got text"),
        ("auth: {user: '', password_env: A}", "expected text, got none"),
        ("auth: {user: 123, password_env: A}", "expected text, got a number; put it in quotes"),
    ],
)
def test_a_wrong_value_tells_what_would_be_right(line: str, message: str) -> None:
    assert only_fault(with_upstream("host: smtp.example.net", line)).message == message


@pytest.mark.parametrize("text", ["[]", "just text", "8", "null", "---\n...\n"])
def test_a_policy_is_a_mapping(text: str) -> None:
    fault = only_fault(text)
    assert fault.key == "policy"
    assert fault.message.startswith("expected a mapping of keys, got ")


def test_empty_lists_of_listeners_and_upstreams_are_refused() -> None:
    assert [str(fault) for fault in faults("spool: x\nlisten: []\nupstreams: {}\n")] == [
        "p.yaml:2:9: listen: expected at least one",
        "p.yaml:3:12: upstreams: expected at least one",
    ]


def test_a_yaml_bomb_is_a_fault() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))
    assert "aliases written out" in only_fault(bomb).message


def test_faults_are_bounded_and_the_rest_is_counted() -> None:
    found = faults("".join(f"unknown{number}: 1\n" for number in range(1000)))
    assert len(found) == MOST_FAULTS + 1
    assert found[-1].message == f"and {1000 + 3 - MOST_FAULTS} more faults"


def test_two_upstreams_may_share_a_history() -> None:
    text = SMALL + "    history: h\n  two: {host: b.example.net, history: h}\n"
    policy = parse(text)
    assert policy.history_path("isp") == policy.history_path("two")


def test_paths_start_at_the_folder_of_the_policy_not_of_its_target(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "policy.yaml").write_text(SMALL)
    link = tmp_path / "policy.yaml"
    link.symlink_to("real/policy.yaml")
    assert read_policy(link).spool == tmp_path / "spool"


def test_bad_secrets_are_faults_at_their_keys_beside_all_others(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        with_upstream(
            "host: smtp.example.net",
            "ca_file: ca.pem",
            "auth: {user: a, password_file: f, colour: red}",
            "limits: [{messages: 0, per: 1m}]",
        )
        + "  b: {host: b.example.net, auth: {user: b, password_file: gone}}\n"
        + "  three: {host: c.example.net, auth: {user: c, password_env: RELAY_UNSET}}\n"
    )
    (tmp_path / "f").write_text("hunter2\n")
    (tmp_path / "f").chmod(0o644)
    with pytest.raises(PolicyError) as caught:
        read_policy(path)
    auth, keys = f"{path}:9", "mechanism, oauth2, password_credential, password_env, password_file, user"
    told = [
        f"{path}:8:14: upstreams.isp.ca_file: cannot open it: No such file or directory",
        f"{auth}:36: upstreams.isp.auth.password_file: it is open to others (mode 0644); chmod 600 it",
        f"{auth}:39: upstreams.isp.auth.?: unknown key; known here: {keys}",
        f"{path}:10:25: upstreams.isp.limits[0].messages: expected a whole number above zero, got a number",
        f"{path}:11:59: upstreams.b.auth.password_file: cannot open it: No such file or directory",
        f"{path}:12:62: upstreams.three.auth.password_env: it is not set",
    ]
    assert str(caught.value).splitlines() == told
    told[0] = told[0].replace("it:", f"{tmp_path}/ca.pem:")
    told[3] = told[3].replace("a number", "0")
    assert caught.value.on_terminal().splitlines() == told
    assert "hunter2" not in repr(caught.value) + str(caught.value)
    assert caught.value.__suppress_context__


def test_a_password_written_into_the_policy_is_not_repeated() -> None:
    secret = "hunter2!"
    for line in (
        f"auth: {{user: a, password: '{secret}'}}",
        f"auth: {{user: a, password_env: '{secret}'}}",
        f"auth: {{user: a, password_credential: '{secret}/'}}",
        f"auth: '{secret}'",
        f"auth: ['{secret}']",
        f"password: '{secret}'",
        f"auth: !password {secret}",
        f"auth: {{user: a, password: '{secret}'",
    ):
        for fault in faults(with_upstream("host: smtp.example.net", line)):
            assert secret not in str(fault)


def test_a_policy_that_cannot_be_read_is_one_fault(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "missing", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(PolicyError) as caught:
            read_policy(path)
        assert str(caught.value) == f"{path}:1:1: policy: cannot read it: {reason}"


@pytest.mark.parametrize("kind", ODD_FILES)
def test_a_policy_that_is_no_file_is_one_fault(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    ODD_FILES[kind](path)
    with pytest.raises(PolicyError) as caught:
        read_policy(path)
    assert len(caught.value.errors) == 1


def test_a_policy_that_is_too_large_is_one_fault(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(SMALL.encode() + b"#" * MAX_BYTES)
    with pytest.raises(PolicyError) as caught:
        read_policy(path)
    assert [fault.message for fault in caught.value.errors] == [f"the file is larger than {MAX_BYTES} bytes"]
