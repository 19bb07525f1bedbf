"""Who is told of bounces and pauses: `notify` of the policy, a URL or a program for each notice.

hooks.py         hears of events, keeps what waits within bounds, tries again
notice.py        what is told
notice_files.py  what waits, on disk
receiver.py      one attempt: a signed POST, or a program with JSON on stdin

Stands above telemetry, whose events it hears, and takes no part in any promise: mail never waits for it.
"""
