"""What one reply means, and what a series of refusals means for the upstream.  Pure.

verdict    the meaning of a reply by rules, which are data (`policy/verdicts.yaml`, `policy/providers.yaml`)
wording    which words of a refusal are the client's; phrases, waits, windows and limits in the others
outcome    the result of one attempt
decision   what an outcome means for recipients, message, sender and upstream
shield     refusals that are not believed yet
account    the state of an account, how each event changes it, and its record on disk
"""
