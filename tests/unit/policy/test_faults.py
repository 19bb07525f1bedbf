"""Faults of a policy: `¦` stands before the place of each; a row has its key and the essential words."""

from collections.abc import Iterator

import pytest

from tests.unit.policy.examples import only_fault, whole_policy

TABLES: dict[str, tuple[str, str]] = {
    "listen": (
        "LISTEN",
        """
{address: ¦0.0.0.0:2525}                            | listen[0].address | nobody could relay
{address: 127.0.0.1:25, clients: [¦10.0.0.1/8]}     | listen[0].clients[0] | did you mean 10.0.0.0/8?
{address: 192.0.2.1:25, users_file: ¦users}         | listen[0].users_file | needs a certificate
{address: 127.0.0.1:25, key: ¦key.pem}              | listen[0].key | a key needs a certificate
{address: 127.0.0.1:465, tls: ¦implicit}            | listen[0].tls | needs a certificate
{address: 127.0.0.1:465, tls: ¦none}                | listen[0].tls | starttls or implicit
{address: 127.0.0.1:465, processes: ¦65}            | listen[0].processes | from 0 to 64
{address: 127.0.0.1:25, users: ¦{a: {}}}            | listen[0].users | needs a users_file
{address: 127.0.0.1:0, users_file: u, users: {a: {senders: ¦a}}} | listen[0].users.?.senders | an address
""",
    ),
    "upstream": (
        "UPSTREAM",
        """
limits: [], port: ¦true                  | port | a whole number
limits: [], port: ¦70000                 | port | at most 65535
limits: [], tls: ¦'no'                   | tls | starttls, implicit or none
limits: [], pipelining: ¦never           | pipelining | true or false
limits: [], history: ¦''                 | history | a path
limits: [], ca_file: ¦~/isp.pem          | ca_file | ~ is not expanded; write the whole path
limits: [], ¦conections: 4               | ? | did you mean connections?
limits: [], history: ¦postgresql://u:hunter2@db/relay | history | without a password
limits: [], history: ¦'postgresql://u@db/relay?sslmode=disable' | history | no parameters but
limits: [], history: {postgresql: ¦db.example} | history.postgresql | such as postgresql://relay@db
limits: [], history: ¦{}                 | history | either path or postgresql
limits: [], auth: ¦hunter2               | auth | a mapping of keys
limits: [], auth: {user: ¦123, password_env: A} | auth.user | a number needs quotes
limits: [], auth: ¦{user: a}             | auth | expected one of password_file
limits: [], auth: {user: a, password_file: f, password_env: ¦E} | auth.password_env | one password
limits: [], auth: {user: a, password_env: ¦a-b} | auth.password_env | an environment variable
limits: [], tls: ¦none, auth: {user: a, password_env: A} | tls | needs TLS
limits: [], auth: {user: a, password_file: f, oauth2: ¦GRANT} | auth.oauth2 | one password
limits: [], auth: {user: a, mechanism: ¦plain, oauth2: GRANT} | auth.mechanism | oauth2.mechanism
limits: [], provider: ¦gmial             | provider | gmail
limits: ¦{messages: 1, per: 1m}          | limits | a list
limits: [¦{per: 1m}]                     | limits[0] | one of messages, recipients
limits: [{messages: 1, recipients: ¦1, per: 1m}] | limits[0].recipients | write two limits
limits: [{messages: ¦0, per: 1m}]        | limits[0].messages | at least 1
limits: [¦{messages: 1}]                 | limits[0].per | required
limits: [{connections: 1, per: 1m, for_each: ¦sender}] | limits[0].for_each | has no for_each
""",
    ),
    "verdicts": (
        "UPSTREAM",
        """
{code: 550, verdict: ¦pauze}             | verdict | defer recipient, defer message, later
¦{code: 550}                             | verdict | required
{code: ¦250, verdict: pause}             | code | a reply code that refuses
{code: 550, but_not_enhanced: ¦5.7, verdict: pause} | but_not_enhanced | an enhanced code such as
{text: ¦'', verdict: pause}              | text | a phrase of at most 200
{text: ¦a*b*c*d, verdict: pause}         | text | at most 2 *
{phase: auth, code: 550, verdict: ¦bounce message} | verdict | only pause and stop are allowed before MAIL
{phase: mail, code: 452, verdict: ¦later} | verdict | only in phase rcpt
{code: 550, verdict: bounce message, wait: ¦5m} | wait | belong to pause, pause sender and stop
{code: 450, verdict: defer message, probe: ¦false} | probe | not to defer message
{phase: mail, verdict: ¦pause}           | verdict | needs a condition: code, enhanced, text
{code: 550, verdict: pause, ¦texts: x}   | ? | did you mean text?
""",
    ),
    "oauth2": (
        "UPSTREAM",
        """
¦{client_id: c}                          | grant | required
{grant: ¦password, client_id: c}         | grant | refresh_token, client_credentials or service_account
{grant: ¦refresh_token, client_id: c, token_url: 'https://t.example/'} | grant | needs refresh_token_file
{grant: ¦refresh_token, client_id: c, refresh_token_file: r} | grant | needs token_url; a provider
{grant: refresh_token, token_url: ¦'http://t.example/'} | token_url | cross the network in the clear
{grant: service_account, scope: s, key_file: f, key_credential: ¦k} | key_credential | one secret
{grant: ¦service_account, scope: s}      | grant | needs key_file or key_credential
""",
    ),
    "rest": (
        "REST",
        """
retry: {min: ¦2h, max: 1h}               | retry.min | longer than max
retry: {min: ¦5}                         | retry.min | a duration with a unit, such as 30s
retry: {min: 1m, ¦min: 2m}               | retry.min | duplicate key; the first is at line 7, column 9
¦'[key]': 1                              | ? | known here
recent: {most: ¦1K}                      | recent.most | at least 1M
lanes: {a: {¦sendr: '@x'}}               | lanes.a.? | did you mean sender?
lanes: {practice: {¦sendr: '@x'}}        | lanes.practice.? | did you mean sender?
lanes: {a: {sender: ¦here.example}}      | lanes.a.sender | an address, @ and a domain
lanes: {a: {header: {¦'a b': x}}}        | lanes.a.header.? | letters, digits
lanes: {a: ¦{share: 5}}                  | lanes.a | needs one of sender, client
lanes: {default: {sender: ¦'@x'}}        | lanes.default.sender | takes all other mail
lanes: {¦A: {sender: '@x'}}              | lanes.? | a-z, 0-9, _ and -
lanes: {a: {sender: '@x', share: 60}, b: {sender: '@y', share: ¦41}} | lanes.b.share | 101 percent
lanes: {a: {sender: '@x', share: ¦100}}  | lanes.a.share | leave nothing
routes: [¦{user: x, upstreams: [isp]}]   | routes[0] | the last route must take all mail
routes: [¦{upstreams: [isp]}, {upstreams: [ses]}] | routes[0] | make it the last
routes: [{upstreams: [isp, ¦gone]}]      | routes[0].upstreams[1] | no upstream of this name
routes: [{upstreams: [isp, ses, ¦isp]}]  | routes[0].upstreams[2] | listed twice
routes: [{upstreams: [isp, ¦twin]}]      | routes[0].upstreams[1] | has the same history
routes: [¦{sender: '@x'}]                | routes[0].upstreams | required
routes: [{upstreams: isp, rewrite: ¦'@-x'}] | routes[0].rewrite | one sender address, or @ and a domain
reports: {upstreams: [ses, ¦gone]}       | reports.upstreams[1] | no upstream of this name
reports: {from: ¦postmaster@ü.example}   | reports.from | one address, in ASCII
notify: [{url: ¦'http://example.net/x'}] | notify[0].url | write https
notify: [¦{url: 'https://a.example', command: [x]}] | notify[0] | a url or a command
notify: [¦{events: [bounced]}]           | notify[0] | a url or a command
notify: [{command: ¦[]}]                 | notify[0].command | at least one
practice: {address: ¦192.0.2.1:2, password_file: p, limit: {messages: 1, per: 1s}} | practice.address | TLS
practice: {address: '[::1]:1', password_file: p, limit: {bytes: ¦1, per: 1s}} | practice.limit.bytes | counts
""",
    ),
}  # fmt: skip
BELOW = {
    "upstream": ("", "upstreams.isp."),
    "verdicts": ("limits: [], verdicts: [%s]", "upstreams.isp.verdicts[0]."),
    "oauth2": ("limits: [], auth: {user: u, oauth2: %s}", "upstreams.isp.auth.oauth2."),
}
"""For a table: the text around each row, and the prefix of each key."""


def _rows() -> Iterator[tuple[str, str, str]]:
    for table, (where, rows) in TABLES.items():
        around, above = BELOW.get(table, ("", ""))
        for row in rows.strip().splitlines():
            written, key, word = (part.strip() for part in row.split(" | "))
            grant = "{grant: service_account, scope: s, key_file: k}"
            written = (around or "%s") % written.replace("GRANT", grant)
            yield whole_policy(**{where: written}), above + key, word


@pytest.mark.parametrize(("text", "key", "word"), list(_rows()))
def test_a_fault_is_reported_at_its_place_and_key(text: str, key: str, word: str) -> None:
    before, _, after = text.partition("¦")

    fault = only_fault(before + after)

    place = before.count("\n") + 1, len(before) - before.rfind("\n")
    assert ((fault.line, fault.column), fault.key) == (place, key)
    assert word in fault.message
    assert "hunter2" not in str(fault)


@pytest.mark.parametrize("name", ["users", "lanes", "auth", "isp"])
def test_a_suggestion_comes_from_the_section_whatever_an_upstream_is_called(name: str) -> None:
    text = whole_policy(UPSTREAM="limits: [], auth: {user: a, pasword_file: f}")

    assert "did you mean password_file?" in only_fault(text.replace("isp:", f"{name}:")).message
