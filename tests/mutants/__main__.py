"""Runs the tests against each mutant, and prints which one caught it; exits 1 if a mutant survived."""

import argparse
import hashlib
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants import page
from tests.mutants.earlier import Earlier
from tests.mutants.equivalents import Equivalents
from tests.mutants.judging import Judge
from tests.mutants.known import ROOT
from tests.mutants.operators import operators
from tests.mutants.page import Verdict
from tests.mutants.sites import Site, sites

PROMISES = (
    *("relay/spool/**/*.py", "relay/sender/spool_thread.py"),
    *("relay/sender/group_commit.py", "relay/daemon/spool_intake.py"),
    *("relay/throttle/file_history.py", "relay/throttle/history_format.py", "relay/throttle/throttle.py"),
)
"""All that is left out of these, one at a time, has to be noticed."""
JUDGED = (
    "relay/spool/**/*.py",
    "relay/throttle/*.py",
    "relay/mail/address.py",
    "relay/mail/text.py",
    "relay/smtp/reply.py",
    "relay/mail/report.py",
)
"""The general mutants are drawn from these."""
LEAST_SCORE = 0.9


def main() -> int:
    """Make each mutant and judge it."""
    options = _options()
    wanted = chosen(options)
    equivalents = Equivalents.load()
    if options.list:
        for module, site in wanted:
            why = equivalents.why(module, site)
            sys.stdout.write(f"{page.line(module, site)}\n" + (f"    equivalent: {why}\n" if why else ""))
        return 0
    with tempfile.TemporaryDirectory(prefix="relay-mutants-") as folder:
        try:
            judge = Judge(Path(folder), options.at_once, options.known)
        except ValueError as broken:
            sys.stdout.write(f"{broken}\n")
            return 2

        def verdict(each: tuple[str, Site]) -> Verdict:
            why = equivalents.why(*each)
            hint = earlier.hint(*each)
            caught = judge.judge(*each, hint, only_able=why is not None, most_s=options.quick)
            earlier.keep(*each, caught)
            found = Verdict(*each, caught, why)
            sys.stdout.write(f"{page.line(found.module, found.site)}\n    {found.told}\n")
            sys.stdout.flush()
            return found

        earlier = Earlier(options.earlier)
        with ThreadPoolExecutor(options.at_once) as pool:
            verdicts = list(pool.map(verdict, wanted))
        judge.close()
    sys.stdout.write("\n".join(page.summary(verdicts)) + "\n")
    return 1 if any(found.is_wrong for found in verdicts) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", help="default: PROMISES, and JUDGED for the sample")
    parser.add_argument("--kinds", nargs="*", default=["sync", "order", "check"])
    parser.add_argument("--sample", type=int, default=0, help="how many general mutants to draw as well")
    parser.add_argument("--seed", type=int, default=1, help="what to draw them from")
    parser.add_argument(
        "--only", nargs="*", default=[], help="only mutants whose line has one of these texts"
    )
    parser.add_argument("--quick", type=float, help="only the likeliest tests of so many seconds")
    parser.add_argument("--known", type=Path, help="keep here what the tests do without a mutant")
    parser.add_argument("--earlier", type=Path, help="ask first what noticed in an earlier run; kept here")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="only say which mutants there are")
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[tuple[str, Site]]:
    """Return the mutants to judge: all that leave a promise out, and a sample of the general ones."""
    wanted = [
        (module, site)
        for module in options.modules or modules(PROMISES)
        for site in sites((ROOT / module).read_text())
        if site.kind in options.kinds
    ]
    general = [
        (module, site)
        for module in options.modules or modules(JUDGED)
        for site in operators((ROOT / module).read_text())
    ]
    wanted += sorted(_drawn(general, options), key=lambda each: (each[0], each[1].begin, each[1].instead))
    if options.only:
        wanted = [each for each in wanted if any(text in page.line(*each) for text in options.only)]
    return wanted


def _drawn(sites_of: list[tuple[str, Site]], options: argparse.Namespace) -> list[tuple[str, Site]]:
    """Draw a sample that changes little where the code changes little: each mutant has a lot of its own."""

    def lot(each: tuple[str, Site]) -> bytes:
        return hashlib.sha256(f"{options.seed} {page.line(*each)} {each[1].instead}".encode()).digest()

    return sorted(sites_of, key=lot)[: options.sample]


def modules(patterns: tuple[str, ...]) -> list[str]:
    """Return the modules that some patterns name, in order."""
    found = {path for pattern in patterns for path in ROOT.glob(pattern)}
    return sorted(str(path.relative_to(ROOT)) for path in found)


if __name__ == "__main__":
    sys.exit(main())
