"""The policy: what the owner wrote in `policy.yaml`, checked, with defaults filled in.

    bytes → document → model (units, surroundings) → Policy
                     ↘ faults → PolicyError

`source` is the door: it turns a file into a `Policy`, or into errors that each name
file, line, column and key.  `model`, `limits` and `lane` hold the types, every default and every rule;
`units` the scalars; `document` YAML with positions; `faults` the words of an error;
`surroundings` the port to the files that a policy names, and `secrets` what is behind
it; `rules` the verdicts as they are written, and `shipped` those that come with the relay;
`loosening` what an edit changes, and how long it has to rest; `named_file` how the policy and each
file that it names is opened.  Pure but for `source`, `shipped`, `secrets` and `named_file`, which read files.
"""
