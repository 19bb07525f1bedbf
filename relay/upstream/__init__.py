"""SMTP out: one account at one smarthost, from the TCP connection to the verdict.

    pool          keeps connections and hands them out
    connection    opens one (address, TLS, EHLO, AUTH), and carries out transactions on it
    login         one mechanism, one attempt
    oauth/        access tokens: asked for, kept, replaced; a person's consent
    transaction   MAIL, RCPT, DATA, content, final dot: one Outcome, whatever the upstream does
    protocol      the wire: a command out, exactly one strict reply in, in time

Knows no spool, no throttle and no policy file: the sender plugs them together.
"""
