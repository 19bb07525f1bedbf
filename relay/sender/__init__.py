"""The sender takes each message from the spool to its end, through queue, throttle and upstream.

sender            holds the spool's lock, the queue, and an account for each upstream of the policy
arrivals          puts mail into the queue, at a start and as listeners accept it; moves it between lines
account           the loop of one account: take messages, get connections, reserve durably, send
transactions      reads messages, sends them on their connections, judges and settles them
pausing           whether the upstream is used; the file that keeps it over a restart
account_row       keeps it in a database, where several hosts share it
connections       what a connection logs in with and offers; opens each with a slot of its own
settling          an attempt; makes its outcome durable, logs it, moves the message on in the queue
reports           reports and warnings: their text, which are owed, and how many go in an hour
threads           the spool, and the throttle of one upstream, off the event loop
host              clock, disk, threads and trigger, as ports; group commit
"""
