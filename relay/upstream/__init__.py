"""The SMTP client: it relays messages to one account at one smarthost, and returns an Outcome for each.

    pool          keeps connections and hands them out
    connection    opens a connection (address, TLS, EHLO, AUTH) and runs transactions on it
    login         logs in: one mechanism, one attempt
    oauth/        gets, keeps and renews access tokens; gets a person's consent
    transaction   runs MAIL, RCPT, DATA, content and final dot: one Outcome, whatever the upstream does
    protocol      sends a command, and takes exactly one strict reply to it before a deadline

This package knows no spool, no throttle and no policy file.  The sender connects them.
"""
