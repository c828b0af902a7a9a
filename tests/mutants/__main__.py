"""Show which test kills which mutant: ``python -m tests.mutants [words] [--workers 2] [--share 30 [--turn 7]]``.

With words, only the mutants whose area, file or description contains one of them; with a share, only every 30th of
them, another one every day: after 30 days it was the turn of all.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from .mutant import Mutant
from .run import Job, copied, run
from .table import AREAS


def main(words: Sequence[str], workers: int, share: int = 1, turn: int = 0) -> int:
    """Run the mutants, several at a time; 1 if one survives, does not fit the code any more, or cannot be judged."""
    chosen = in_turn(words, share, turn)
    misfits = [f"{mutant.words}: {why}" for mutant in chosen if (why := mutant.misfit()) is not None]
    if misfits:
        print("These mutants do not fit the code any more:", *misfits, sep="\n  ")
        return 1
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        copies = [copied(Path(directory) / str(i)) for i in range(workers)]
        if not _pass_without(chosen, copies):
            return 1
        left = _survivors(chosen, copies)
    print(f"\n{len(chosen) - len(left)} of {len(chosen)} mutants killed in {time.monotonic() - begin:.0f} s")
    print(*(f"SURVIVES: {mutant.file}: {mutant.words}" for mutant in left), sep="\n")
    return 1 if left else 0


def in_turn(words: Sequence[str], share: int, turn: int) -> dict[Mutant, str]:
    """Every so many of the mutants that are meant, with their areas; each of them in one of as many turns."""
    meant = [(mutant, area) for area, mutants in AREAS.items() for mutant in mutants if _is_meant(area, mutant, words)]
    return dict(meant[turn % share :: share])


def _is_meant(area: str, mutant: Mutant, words: Sequence[str]) -> bool:
    return not words or any(word in f"{area} {mutant.file} {mutant.words}" for word in words)


def _pass_without(mutants: Iterable[Mutant], copies: Sequence[Path]) -> bool:
    """Whether all the tests pass as long as nothing is wrong: otherwise they say nothing about mutants."""
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    shares = [Job(tuple(share)) for i in range(len(copies)) if (share := tests[i :: len(copies)])]
    wrong = [line for _, outcome in run(shares, copies) for line in (*outcome.failed, outcome.trouble) if line]
    if wrong:
        print("These tests fail without any mutant:", *wrong, sep="\n  ")
    return not wrong


def _survivors(mutants: dict[Mutant, str], copies: Sequence[Path]) -> list[Mutant]:
    """Run them, and print a line for each as it ends."""
    left = []
    for job, outcome in run([Job(mutant.tests, mutant) for mutant in mutants], copies):
        assert job.mutant is not None
        verdict = outcome.trouble or (f"killed by {outcome.failed[0]}" if outcome.failed else "SURVIVES")
        left += [] if outcome.failed and not outcome.trouble else [job.mutant]
        print(f"{mutants[job.mutant]:<12} {job.mutant.file}: {job.mutant.words}\n{'':<13}-> {verdict}", flush=True)
    return left


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Show which test kills which mutant.")
    parser.add_argument("words", nargs="*", help="only mutants whose area, file or description contains one of them")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--share", type=int, default=1, help="only every so many of them")
    parser.add_argument("--turn", type=int, help="which of these shares; by default another one every day")
    given = parser.parse_args()
    turn = datetime.datetime.now(datetime.UTC).date().toordinal() if given.turn is None else given.turn
    if given.share > 1:
        print(f"--share {given.share} --turn {turn % given.share}")
    sys.exit(main(given.words, given.workers, given.share, turn))
