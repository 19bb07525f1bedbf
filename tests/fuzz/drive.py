"""Search for bytes that break a target's law: `python -m tests.fuzz.drive NAME SEED SECONDS FOLDER`.

Guided by coverage, with atheris: libFuzzer keeps every input that reached a new
branch of ours, and goes on from it.  Prints the input of the first broken law, and ends
with a status other than 0; else the number of inputs.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from tests.fuzz.targets import Target

LONGEST_BYTES = 4096
HANG_S = 60
"""Only so that endless work outside Python's own calls, as in a pattern, ends at all."""


def known(name: str) -> list[bytes]:
    regressions = import_module("tests.fuzz.regressions").REGRESSIONS
    return [*_target(name).SEEDS, *regressions.get(name, {}).values()]


def guided(name: str, seed: int, seconds: int, folder: Path) -> None:
    """Search with atheris; never returns."""
    atheris = import_module("atheris")
    with atheris.instrument_imports(include=["relay"]):
        law = _target(name).target
    corpus, words = folder / "corpus", folder / "words"
    corpus.mkdir()
    for number, raw in enumerate(known(name)):
        (corpus / str(number)).write_bytes(raw)
    words.write_text("".join(_word(token) for token in _target(name).TOKENS if 0 < len(token) <= 64))

    def keeps_the_law(raw: bytes) -> None:
        try:
            law(raw)
        except BaseException:
            sys.stderr.write(f"\n{name}, seed {seed}: {raw!r}\n")
            raise

    options = [
        f"-seed={seed % 2**32}",
        f"-max_total_time={max(1, seconds)}",
        f"-max_len={LONGEST_BYTES}",
        f"-timeout={HANG_S}",
        f"-dict={words}",
        f"-artifact_prefix={folder}/",
        "-print_final_stats=1",
        str(corpus),
    ]
    atheris.Setup([sys.argv[0], *options], keeps_the_law)
    atheris.Fuzz()


def _target(name: str) -> "Target":
    # By its name and not from the list: with atheris, only what is imported late is instrumented.
    return cast("Target", import_module(f"tests.fuzz.{name}"))


def _word(token: bytes) -> str:
    return '"' + "".join(f"\\x{octet:02x}" for octet in token) + '"\n'


if __name__ == "__main__":
    guided(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
