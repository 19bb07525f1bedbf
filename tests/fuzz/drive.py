"""Search for bytes that break a target's law: `python -m tests.fuzz.drive NAME SEED SECONDS FOLDER`.

Coverage guides the search (atheris): libFuzzer keeps every input that reaches a new branch
of the relay, and goes on from it.  It prints the first input that breaks the law, and exits
with another status than 0; else it prints the number of inputs.
"""

import sys
from importlib import import_module
from pathlib import Path

LONGEST_BYTES = 4096
HANG_S = 60
"""Ends endless work outside of Python's own calls, as in a regular expression."""


def guided(name: str, seed: int, seconds: int, folder: Path) -> None:
    """Search with atheris; never returns."""
    atheris = import_module("atheris")
    # The list of targets would import too much before: only modules imported here are instrumented.
    with atheris.instrument_imports(include=["relay"]):
        target = import_module(f"tests.fuzz.{name}")
    corpus, words = folder / "corpus", folder / "words"
    corpus.mkdir()
    for number, raw in enumerate(target.SEEDS):
        (corpus / str(number)).write_bytes(raw)
    words.write_text("".join(_word(token) for token in target.TOKENS if 0 < len(token) <= 64))

    def keeps_the_law(raw: bytes) -> None:
        try:
            target.target(raw)
        except BaseException:
            sys.stderr.write(f"\n{name}, seed {seed}: {raw!r}\n")
            raise

    options = [
        f"-seed={seed % 2**32}",
        f"-max_total_time={seconds}",
        f"-max_len={LONGEST_BYTES}",
        f"-timeout={HANG_S}",
        f"-dict={words}",
        f"-artifact_prefix={folder}/",
        "-print_final_stats=1",
        str(corpus),
    ]
    atheris.Setup([sys.argv[0], *options], keeps_the_law)
    atheris.Fuzz()


def _word(token: bytes) -> str:
    return '"' + "".join(f"\\x{octet:02x}" for octet in token) + '"\n'


if __name__ == "__main__":
    guided(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
