"""One look at an upstream by an operator's word, with each step told, beside a relay that may run.

login    resolve, connect, TLS, EHLO, AUTH, QUIT; and one test message where that is asked for
"""
