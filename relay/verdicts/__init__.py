"""What a reply means, and what refusals add up to.  Pure.

verdict    a reply by the rules, which are data (`policy/verdicts.yaml`, `policy/providers.yaml`)
echo       what the client said, taken out of a reply before its words are read
wording    phrases that a rule looks for, the wait, windows and limits that a refusal speaks of
outcome    what one attempt came to
decision   what an outcome means for recipients, message, sender and upstream
shield     refusals that are not believed yet
account    the whole state of an account, what each event makes of it, and its record on disk
"""
