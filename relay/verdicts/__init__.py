"""What a reply means, and what refusals add up to.  Pure.

verdict       a reply by the rules, which are data (`policy/verdicts.yaml`, `policy/providers.yaml`)
echo          what the client said, taken out of a reply before its words are read
phrases       words that a rule looks for; retry_after: the wait that a refusal asks for
outcome       what one attempt came to
decision      what an outcome means for recipients, message, sender and upstream
shield        refusals that are not believed yet
offers        what an upstream is believed not to offer
health        the state of an upstream, and the table of what changes it
pause_record  how long it is paused, and what of that is kept; slow_start: how it begins again
"""
