"""Notices of bounces and pauses: the relay posts each to a URL, or runs a program (`notify` in the policy).

Stands above telemetry, whose events it watches.  No promise depends on it, and mail never waits for it.
"""
