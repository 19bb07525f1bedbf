"""What a reply means, and what refusals add up to.  Pure.

verdict       a reply by the rules, which are data (`policy/verdicts.yaml`, `policy/providers.yaml`)
echo          what the client said, taken out of a reply before its words are read
phrases       words that a rule looks for; retry_after: the wait that a refusal asks for
outcome       what one attempt came to
decision      what an outcome means for recipients, message, sender and upstream
shield        refusals that are not believed yet
offers        what a message may need of a connection
health        the states of an account, and the table of what changes them
account       the whole state of an account, what each event makes of it, and its record on disk
pauses        how long to rest, and when there was a rest; operator_pause: an operator's word
"""
