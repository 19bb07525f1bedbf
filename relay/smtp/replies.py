"""Every reply that our servers give, in one place (RFC 5321, 4.2; codes of RFC 3463).  Pure.

Each text is a whole reply without its last CRLF.  By RFC 2034, 4 each 2yz, 4yz and 5yz has an enhanced code,
except the greeting and replies to HELO and EHLO; a 3yz has none.  No reply repeats what a client sent.
"""

CLOSING = "421 4.3.2 The service is shutting down"
IDLE_TOO_LONG = "421 4.4.2 Timeout, closing the connection"
TOO_MANY_CONNECTIONS = "421 4.7.0 Too many connections"
TOO_MANY_FROM_CLIENT = "421 4.7.0 Too many connections from your address"
TOO_MANY_ERRORS = "421 4.7.0 Too many errors"
LOGIN_CHANGED = "421 4.7.0 Your login has changed, connect and log in again"
TOO_MANY_ATTEMPTS = "421 4.7.0 Too many failed attempts to authenticate"
NO_PROXY_HEADER = "421 4.7.0 PROXY protocol header expected"
NOT_SMTP = "421 4.7.0 This is not a web server"

HELP = "214 2.0.0 See RFC 5321"
BYE = "221 2.0.0 Bye"
OK = "250 2.0.0 Ok"
SENDER_OK = "250 2.1.0 Ok"
RECIPIENT_OK = "250 2.1.5 Ok"
CANNOT_VERIFY = "252 2.5.2 Cannot VRFY user, but will accept message and attempt delivery"
GO_AHEAD = "354 End with <CRLF>.<CRLF>"

TLS_READY = "220 2.0.0 Ready to start TLS"
TLS_ACTIVE = "503 5.5.1 TLS is already active"
TLS_NOT_OFFERED = "502 5.5.1 STARTTLS is not offered"
TLS_PIPELINED = "554 5.5.1 Nothing may follow STARTTLS before its reply"

AUTHENTICATED = "235 2.7.0 Authentication successful"
AUTH_FAILED = "535 5.7.8 User or password is wrong"
AUTH_CANCELLED = "501 5.7.0 Authentication cancelled"
AUTH_LATER = "454 4.7.0 Too many failed attempts, try again later"
AUTH_MALFORMED = "501 5.5.2 The response is not valid"
AUTH_SYNTAX = "501 5.5.4 Syntax: AUTH mechanism [initial-response]"
AUTH_UNKNOWN = "504 5.5.4 Unknown mechanism, use {}"
AUTH_NOT_OFFERED = "502 5.5.1 AUTH is not offered"
AUTH_TWICE = "503 5.5.1 Already authenticated"
AUTH_IN_TRANSACTION = "503 5.5.1 AUTH is not permitted during a transaction"
NEEDS_TLS = "538 5.7.11 Authentication needs TLS, use STARTTLS first"
NEEDS_AUTH = "530 5.7.0 Authentication required"
NEEDS_TLS_THEN_AUTH = "530 5.7.0 Must issue a STARTTLS command first"
NOT_A_CLIENT = "550 5.7.1 Relaying denied"
TOO_MUCH_QUEUED = "452 4.3.1 You have too many messages queued, try again later"
NOT_YOUR_SENDER = "550 5.7.1 You may not use this sender address with your login"

BAD_LINE_END = "500 5.5.2 A command must end in CRLF and contain no control characters"
LINE_TOO_LONG = "500 5.5.2 The command line is too long"
UNKNOWN_COMMAND = "500 5.5.1 Command not recognized"
NOT_IMPLEMENTED = "502 5.5.1 Command not implemented"
NO_ARGUMENT_ALLOWED = "501 5.5.4 This command takes no argument"
HELO_NEEDS_NAME = "501 Syntax: EHLO or HELO, then a host name"
NEEDS_HELO = "503 5.5.1 Send EHLO or HELO first"
NEEDS_EHLO = "503 5.5.1 Send EHLO first"
NEEDS_MAIL = "503 5.5.1 Need MAIL first"
NEEDS_RECIPIENT = "554 5.5.1 No valid recipients"
NESTED_MAIL = "503 5.5.1 MAIL was already given"
MAIL_SYNTAX = "501 5.5.4 Syntax: MAIL FROM:<address>"
RCPT_SYNTAX = "501 5.5.4 Syntax: RCPT TO:<address>"
BAD_SENDER = "501 5.1.7 Bad sender address: {}"
BAD_RECIPIENT = "501 5.1.3 Bad recipient address: {}"
BAD_PARAMETERS = "501 5.5.4 {}"
NON_ASCII = "553 5.6.7 An address outside ASCII needs SMTPUTF8"  # RFC 6531, 3.5
UNKNOWN_PARAMETER = "555 5.5.4 A parameter is not recognized or not implemented"
BAD_PARAMETER = "501 5.5.4 A parameter has a wrong value"
TOO_MANY_RECIPIENTS = "452 4.5.3 Too many recipients"
TOO_BIG = "552 5.3.4 The message exceeds the size limit"

INTERNAL_FAULT = "451 4.3.0 Internal error, try again later"

BARE_NEWLINE = "550 5.6.0 A line ends in CR or LF alone instead of CRLF (RFC 5321, 2.3.8)"
LOOPING = "554 5.4.6 Too many Received: lines, the message is looping"


def queued(queue_id: str) -> str:
    return f"250 2.0.0 Ok: queued as {queue_id}"
