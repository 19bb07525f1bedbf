"""What is kept in PostgreSQL, for relays on several hosts.

database      connections, as both engines use them: checked, bounded, and with errors in words
schema.sql    the tables; relay database init makes them

Nobody else imports this package: it needs the extra `relay-smarthost[postgresql]`.
"""
