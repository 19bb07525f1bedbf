"""Any bytes give a value or the layer's own error: never another exception, never endless work.

One target a file: a plain function `target(raw: bytes) -> None` that asserts the laws of one
layer, `SEEDS`, which are valid or once broke a law, and `TOKENS`, which matter to its grammar.
Most inputs would end at the first checksum or keyword, so a target takes its bytes for a
list of choices (`choices`) from which it builds what is nearly valid.  Hypothesis draws the
bytes in `make test`; `make crash` draws them by the million, guided by coverage, with atheris.
"""
