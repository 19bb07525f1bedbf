"""What a hostile upstream says, and the addresses and letters it says it about.  All drawn from dice.

The wordings are those of real servers.  `{r}` is the recipient, `{l}` its local part, `{s}` the sender,
`{d}` the recipient's domain, `{j}` the subject.  A wording of several lines has a line break in it.
"""

import random
import re
from dataclasses import dataclass

SUBJECTS = (
    "lunch",
    "Your account has been suspended",
    "daily sending quota exceeded",
    "5.7.1 relay access denied",
    "user unknown",
    "try again in 86400 seconds",
)
SENDERS = (
    "mjd@front.test",
    "list-bounces@front.test",
    "hourly+limit=50@front.test",
    '"daily quota"@front.test',
)

PLAIN = ("r.{n}", "anna.{n}", "o'neil+x.{n}", "{n}")
LIKE_US = (
    '"daily sending quota exceeded {n}"',
    '"5.7.1 account blocked {n}"',
    '"daily sending is paused for this account {n}"',
    '"too many messages per hour {n}"',
    '"try again in 86400 seconds {n}"',
    '"limit of 50 recipients per 3600s {n}"',
    '"421 4.4.5 server busy {n}"',
    '"your account has been suspended \\" {n}"',
    "rate.limit.exceeded.{n}",
    "relay-access-denied.{n}",
    "authentication.required.{n}",
    "greylisted.try.later.{n}",
    "hourly.{n}",
)
LIKE_THE_DEAD = (
    '"5.1.1 user unknown {n}"',
    '"550 no such user {n}"',
    '"mailbox full {n}"',
    "message-size-limit.{n}",
    "spam.score.{n}",
    '"5.6.0 content {n}"',
)
DOMAINS = (
    "list.test",
    "x.example",
    "throttl.example",
    "ratelimit.example",
    "daily-quota.example",
    "nosuchuser.example",
)
BEYOND_ASCII = "gr\u00fc\u00dfe.{n}@b\u00fccher.example"

DEAD = (
    "550 5.1.1 <{r}>: Recipient address rejected: User unknown in virtual mailbox table",  # Postfix
    "550 5.1.1 <{r}>: Recipient address rejected: User unknown in local recipient table",
    "550 5.1.1 <{r}>... User unknown",  # sendmail
    "550 5.1.1 {l}... User unknown",
    "550 5.1.2 {r}... Host unknown (Name server: {d}: host not found)",
    "550 <{r}>: No such user here",  # Exim
    "550 5.1.1 {r}: Unrouteable address",
    "550 sorry, no mailbox here by that name. (#5.1.1)",  # qmail
    "550 5.1.1 sorry, no mailbox here by that name {l} (#5.1.1)",
    "550 5.1.1 Invalid recipient: <{r}>",  # OpenSMTPD
    "550 5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient {r} not found by SMTP address lookup",  # Exchange
    (
        "550 5.1.1 The email account that you tried to reach does not exist. Please try\n"
        "550 5.1.1 double-checking the recipient's email address for typos or\n"
        "550 5.1.1 unnecessary spaces. For more information, go to\n"
        "550 5.1.1  https://support.google.com/mail/?p=NoSuchUser - gsmtp"
    ),  # Gmail
    "553 5.1.3 The recipient address <{r}> is not\n553 5.1.3 a valid RFC 5321 address. - gsmtp",
)
SLOW = (
    "450 4.2.0 <{r}>: Recipient address rejected: Greylisted, see http://postgrey.schweikert.ch/help/{d}.html",
    "450 4.1.1 <{r}>: Recipient address rejected: unverified address: Address verification in progress",
    "451 4.3.0 <{r}>: Temporary lookup failure",
    "452 4.2.2 <{r}>... Mailbox full",
    "451 {r}: temporarily unable to verify, please try later",
    "450 4.2.0 {l}... Mailbox locked",
)
BAD_CONTENT = (
    "554 5.6.0 Message contains invalid header",
    "550 5.6.0 Lone CR or LF in headers (see RFC5322 section 2.2)",
    "552 5.3.4 Message size exceeds fixed limit",
    "554 5.6.0 <{r}>: content rejected, Subject: {j}",
)
US_BEFORE_MAIL = (
    "421 4.7.0 Try again later, closing connection",
    "554 5.7.1 You've reached your daily relay quota",
    "450 4.3.2 Concurrent connections limit exceeded",
    "550 Too many messages. Try again in 92 seconds.",
    "554 5.7.1 Service unavailable; Client host blocked using zen.spamhaus.org",
)
US_AT_AUTH = (
    "535 5.7.8 Authentication credentials invalid",
    "454 4.7.0 Too many login attempts, please try again later",
    "451 Authentication failed: Maximum credits exceeded",
)
US_FROM_MAIL = (
    "550 5.4.5 Daily user sending limit exceeded",
    "550 5.7.1 Daily SMTP relay limit exceeded for customer",
    "454 4.7.0 Throttling failure: Maximum sending rate exceeded",
    "550 - Stop, you are sending too fast!",
    "550 5.7.1 [STF] Sending too fast",
    "554 5.7.1 <{s}>: Sender address rejected: You have exceeded your Outmail quota",
    "530 5.7.0 Authentication required",
    '451 4.7.1 Ratelimit "user" exceeded',
    "550 This IP has sent too many messages this hour. IB504",
    "554 5.1.8 Email Outgoing Blocked",
    "550 5.7.1 Your account has been suspended",
    "421 4.3.2 Service not available",
)
US_AT_RCPT = (
    "554 5.7.1 <{r}>: Recipient address rejected: Sender Hourly Mail Quota Exceeded",
    "450 4.7.1 <{r}>: Recipient address rejected: Policy Rejection- Quota Exceeded",
    "554 5.7.1 <{r}>: Relay access denied",
    "550 Domain front.test has exceeded the max emails per hour (125/100 (125%)) allowed. Message discarded.",
    "452 Too many recipients received this hour, only relaying 400 msg/hour!",
    "550 5.7.1 {r}... Relaying denied",
)
OVER = "550 5.7.1 You have sent too many messages, limit of {n} per {t}"
UNASKED = (
    "550 5.1.1 User unknown",
    "550 5.1.1 <nobody@elsewhere.example>: Recipient address rejected: User unknown in virtual mailbox table",
    "250 2.0.0 Ok",
    "250 2.0.0 Ok: queued",
    "354 End data with <CR><LF>.<CR><LF>",
    "451 4.3.0 Temporary failure",
    "552 5.3.4 Message too big",
    "550 5.4.5 Daily user sending limit exceeded",
)
GARBAGE = (
    b"250ok\r\n",
    b"ok\r\n",
    b"25",
    b"\xff\xfe\x00\r\n",
    b"250 a\n250 b\r\n",
    b"250-a\r\n550 b\r\n",
    b"2500 a\r\n",
)

TAG = re.compile(r"n([0-9]+)k([0-9]+)")
"""What names one recipient of one letter, in whatever shape it is quoted."""


@dataclass(frozen=True, slots=True)
class Recipient:
    """One recipient of one letter, and how the upstream treats it."""

    number: int
    """Of the letter."""
    index: int
    address: str
    dead: str
    """The refusal that it always gets; empty where it lives."""
    slow: tuple[str, ...]
    """The refusals that it gets first."""

    @property
    def name(self) -> str:
        return f"n{self.number}k{self.index}"


@dataclass(frozen=True, slots=True)
class Letter:
    """A message to hand over."""

    number: int
    sender: str
    subject: str
    recipients: tuple[Recipient, ...]
    content: bytes
    bad: str
    """The refusal that its content always gets; empty where it is good."""

    @property
    def needs_utf8(self) -> bool:
        return not all(each.address.isascii() for each in self.recipients)

    @property
    def needs_8bit(self) -> bool:
        return not self.content.isascii()


def letter(dice: random.Random, number: int, *, echoes: bool = True) -> Letter:
    """Draw a letter."""
    count = dice.choice([1, 1, 1, 2, 3, 4])
    recipients = tuple(_recipient(dice, number, index, echoes=echoes) for index in range(count))
    sender = dice.choice(SENDERS if echoes else SENDERS[:2])
    subject = dice.choice(SUBJECTS if echoes else SUBJECTS[:1])
    kinds = [b"", b".", b"..", b".dot", b"plain words", b"\t ", b"x" * 900, b"250 ok", b"QUIT"]
    if dice.random() < 0.3:
        kinds.append("gr\u00fc\u00dfe".encode())
    lines = [
        b"From: <%s>" % sender.encode(),
        b"Subject: %s" % subject.encode(),
        b"Message-ID: <n%d@front.test>" % number,
        b"Received: by somebody before us",
        b"",
        *dice.choices(kinds, k=dice.randint(0, 20)),
    ]
    if dice.random() < 0.05:
        lines += [b"%06d " % line + b"y" * 70 for line in range(dice.choice([1000, 5000]))]
    bad = dice.choice(BAD_CONTENT) if dice.random() < 0.08 else ""
    return Letter(number, sender, subject, recipients, b"\r\n".join(lines) + b"\r\n", bad)


def _recipient(dice: random.Random, number: int, index: int, *, echoes: bool) -> Recipient:
    name = f"n{number}k{index}"
    kind = dice.random() if echoes else 0.0
    if kind > 0.97:
        address = BEYOND_ASCII.format(n=name)
    else:
        local = dice.choice(PLAIN if kind < 0.4 else LIKE_US if kind < 0.8 else LIKE_THE_DEAD)
        address = f"{local.format(n=name)}@{dice.choice(DOMAINS if echoes else DOMAINS[:2])}"
    fate = dice.random()
    dead = dice.choice(DEAD) if fate < 0.2 else ""
    slow = tuple(dice.choices(SLOW, k=dice.randint(1, 2))) if 0.2 <= fate < 0.35 else ()
    return Recipient(number, index, address, dead, slow)


def filled(wording: str, recipient: str, sender: str, subject: str) -> list[str]:
    """Return the lines of a wording, each with its code, about these."""
    local, _, domain = recipient.rpartition("@")
    code = wording[:3]
    parts = {"{r}": recipient, "{l}": local, "{d}": domain, "{s}": sender, "{j}": subject}
    text = re.sub(r"\{[rldsj]\}", lambda found: parts[found[0]], wording)
    return [line.removeprefix(code).lstrip(" ") for line in text.split("\n")]
