"""Fuzzing: any bytes give a value or the layer's own error, never another exception or endless work.

Each target is a file with a function `target(raw: bytes) -> None`, which asserts the laws of one layer,
`SEEDS`, which are valid or once broke a law, and `TOKENS`, which matter to the grammar.  Random bytes would
mostly fail at the first checksum or keyword.  So a target takes its bytes for a list of choices (`choices`),
from which it builds nearly valid input.  Hypothesis draws the bytes; `make crash` draws many more.
"""
