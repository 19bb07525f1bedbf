"""The policy: the content of `policy.yaml`, checked, with defaults filled in.

    bytes → document → model (lane, units) → Policy
                     ↘ faults → PolicyError

`source` is the entry point: it turns a file into a `Policy`, or raises `PolicyError` with all faults, each
with file, line, column and key.  Only `source`, `shipped`, `secrets` and `named_file` read files.
"""
