"""Certificates towards upstreams.

client_certificates    what the relay shows: read live, the last good pair stays
"""
