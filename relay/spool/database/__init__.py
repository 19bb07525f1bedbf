"""PostgreSQL, as the relay sees it: for the queue (relay/spool/postgresql) and for histories.

connection      connections: checked, bounded, and with errors in words
account         the row of an account, which its histories and its pause share
schema          the tables (schema.sql): made, brought up to date, looked at

It needs the extra `relay-smarthost[postgresql]`, so it is imported where a policy names a database.
"""
