"""`relay database` on a real server: it makes and checks the tables, and explains what it refuses."""

from pathlib import Path

import psycopg
import pytest

from relay.spool.database.connection import Database, once
from relay.spool.postgresql import IN_A_DATABASE
from tests.fakes.certificates import make_certificates
from tests.fakes.postgresql import Server
from tests.unit.cli.conftest import Run
from tests.unit.policy.examples import with_upstream

RELOAD = "SELECT pg_reload_conf()"


@pytest.fixture(scope="module")
def server(server: Server) -> Server:
    server.execute("CREATE ROLE relay LOGIN PASSWORD 'hunter2'")
    return server


@pytest.fixture
def url(server: Server, policy_path: Path) -> str:
    """Return the URL of an empty database; the policy has its history there."""
    url = server.make_database("mail")
    write(policy_path, url.replace("postgres@", "relay@"))
    return url


def write(policy_path: Path, url: str, more: str = "") -> None:
    history = f"history: {{postgresql: '{url}'{more}}}"
    policy_path.write_text(with_upstream("host: smtp.example.net", history))


def test_init_lets_the_policys_role_only_use_the_tables(server: Server, url: str, run: Run) -> None:
    assert "no tables of the relay" in run("database", "check").err
    assert run("database", "init").code == 75
    assert run("database", "init", "--as", url).code == 0
    assert 'schema "relay" already exists' in run("database", "init", "--as", url).err

    code, out, _ = run("database", "check")
    assert code == 0
    assert ", as relay, tables of version 1\n" in out
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        server.execute("SET ROLE relay", "DROP TABLE relay.history", database="mail")


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("ALTER ROLE relay SET default_transaction_read_only = on", "session is read-only"),
        (
            "UPDATE relay.schema_version SET version = 2",
            "version 2, this relay needs 1: install a newer relay",
        ),
        (
            "UPDATE relay.schema_version SET version = 0",
            "version 0, this relay needs 1: run relay database upgrade",
        ),
        ("ALTER SYSTEM SET fsync = off", "fsync is off"),
        ("REVOKE USAGE ON SCHEMA relay FROM relay", "permission denied for schema relay"),
        ("REVOKE DELETE ON relay.history FROM relay", "lacks rights on history"),
        ("ALTER ROLE relay NOLOGIN", 'role "relay" is not permitted to log in'),
    ],
)
def test_check_refuses_a_database_that_a_relay_cannot_rely_on(
    server: Server, url: str, run: Run, statement: str, words: str
) -> None:
    assert run("database", "init", "--as", url).code == 0
    server.execute(statement, RELOAD, database="mail")
    try:
        code, out, err = run("database", "check")
    finally:
        server.execute(
            "ALTER ROLE relay RESET ALL", "ALTER ROLE relay LOGIN", "ALTER SYSTEM RESET ALL", RELOAD
        )
    assert (code, out) == (75, "")
    assert words in err


def test_upgrade_keeps_tables_of_this_version_and_refuses_newer(server: Server, url: str, run: Run) -> None:
    run("database", "init", "--as", url)
    assert "had version 1, and have version 1" in run("database", "upgrade", "--as", url).out
    assert "permission denied" in run("database", "upgrade").err
    server.execute("UPDATE relay.schema_version SET version = 2", database="mail")
    assert "have version 2, this relay supports up to 1" in run("database", "upgrade", "--as", url).err


@pytest.mark.parametrize("weak", ["off", "local"])
def test_a_commit_is_durable_whatever_the_role_or_the_environment_says(
    server: Server, url: str, run: Run, monkeypatch: pytest.MonkeyPatch, weak: str
) -> None:
    run("database", "init", "--as", url)
    server.execute(f"ALTER ROLE relay SET synchronous_commit = {weak}")
    monkeypatch.setenv("PGOPTIONS", f"-c synchronous_commit={weak}")
    try:
        with once(Database(url.replace("postgres@", "relay@"))) as connection:
            assert connection.execute("SHOW synchronous_commit").fetchall() == [("on",)]
    finally:
        server.execute("ALTER ROLE relay RESET ALL")


def test_tls_is_verified_and_no_password_is_shown(
    server: Server, policy_path: Path, tmp_path: Path, run: Run
) -> None:
    run("database", "init", "--as", server.make_database("secure"))
    certificates = make_certificates(tmp_path)
    server.ask_for_passwords_over_tls(certificates)
    (tmp_path / "right").write_text("hunter2\n")
    (tmp_path / "wrong").write_text("hunter3\n")
    for name in ("right", "wrong"):
        (tmp_path / name).chmod(0o600)
    # In capitals the name is not taken for this host, but the certificate is valid for it.
    url = f"postgresql://relay@LOCALHOST:{server.port}/secure"
    trusted = f", ca_file: '{certificates.ca}'"
    told = ""
    for more, words in (
        (f", password_file: right{trusted}", "no tables"),
        (f", password_file: wrong{trusted}", "password authentication failed"),
        (trusted, "no password supplied"),
        (", password_file: right", "certificate verify failed"),
        (f", password_file: gone{trusted}", "cannot read it: No such file"),
    ):
        write(policy_path, url, more)
        ran = run("database", "check")
        assert ran.code == 75
        assert words in ran.err
        told += ran.out + ran.err
    write(policy_path, url.replace("LOCALHOST", "LOCALHOST.LOCALDOMAIN"), f", password_file: right{trusted}")
    told += run("database", "check").err
    assert "hunter" not in told


AWAY = "postgresql://relay@127.0.0.1:1/mail"
OF_THE_QUEUE = (["fsck"], ["spool", "convert"], ["spool", "convert", "--to", "log"], ["queue"], ["status"])
OF_A_HISTORY = (["database", "check"], ["database", "init"], ["audit"])


@pytest.mark.parametrize("command", [*OF_THE_QUEUE, *OF_A_HISTORY])
def test_an_unreachable_database_is_reported_in_one_line_and_exits_75(
    policy_path: Path, command: list[str], run: Run
) -> None:
    write(policy_path, AWAY)
    if command in OF_THE_QUEUE:
        text = policy_path.read_text().replace(
            "spool: spool", f"spool: {{path: spool, postgresql: '{AWAY}'}}"
        )
        policy_path.write_text(text)
        (policy_path.parent / "spool" / "format").write_bytes(IN_A_DATABASE)

    code, _, err = run(*command)

    assert (code, err.count("\n")) == (75, 1)
    assert "connection failed: " in err
    assert "disk" not in err
