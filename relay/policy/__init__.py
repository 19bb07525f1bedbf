"""The policy: what the owner wrote in `policy.yaml`, checked, with defaults filled in.

    bytes → document → model (lane, database, units) → Policy
                     ↘ faults → PolicyError

`source` is the door: it turns a file into a `Policy`, or into all its faults, each with file, line,
column and key.  Pure but for `source`, `shipped`, `secrets` and `named_file`, which read files.
"""
