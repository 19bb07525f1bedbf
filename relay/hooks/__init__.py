"""Who is told of bounces and pauses: `notify` of the policy, a URL or a program for each notice.

Stands above telemetry, whose events it hears, and takes no part in any promise: mail never waits for it.
"""
