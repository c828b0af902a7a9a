"""The field's benchmark: its truths against independent ones, its judgement of liars, its verdicts, and its memory."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.field import cells as cells_module
from experiments.field import run, worker
from experiments.field.cases import Answer, Case, Functions, Programme, Quadratic, Solved
from experiments.field.cells import Bench, smaller_timeout
from experiments.field.conditions import NoTruthError, Refined
from experiments.field.digests import ROOT, code_digest
from experiments.field.families import FAMILIES
from experiments.field.families.nonconvex import PROBLEMS
from experiments.field.formulas import casadi_operations, torch_operations
from experiments.field.judge import judge
from experiments.field.libraries import LIBRARIES, library
from experiments.field.measure import measure
from experiments.field.page import build, piece
from experiments.field.plan import Cell, Plan
from experiments.field.processes import Processes
from experiments.field.rows import NOT_MEASURED, Row, row_of
from experiments.field.truth import Truth, truth
from experiments.field.truths import truth_digest
from experiments.field.verdicts import contests, criteria, standings, verdict
from experiments.shared.files import read_csv
from experiments.shared.jobs import Piece
from tests.support.experiments import command

BY_CLARABEL = ("dense-qp", "sparse-qp", "chain", "sudoku", "lq-control", "portfolio")
CLOSED = ("simplex", "transport-10", "eigenvector")
BY_CASADI = ("pendulum", "quadrotor", "hanging-chain", "logistic", "entropy", "geometric", "power-flow", "nonconvex")


def settled(name: str) -> tuple[Case, Truth]:
    needed = {"clarabel": BY_CLARABEL, "casadi": BY_CASADI}
    for package, families in needed.items():
        if name in families:
            pytest.importorskip(package)
    case = FAMILIES[name].make(*FAMILIES[name].quick[0], 0)
    return case, truth(case)


def moved(case: Case, inputs: dict[str, Any]) -> Case:
    """The same problems with other inputs."""
    statement = case.statement
    names = {"simplex": {"q": "x"}}.get(type(statement).__name__.lower(), {name: name for name in inputs})
    values = {names[name]: -x if names[name] == "x" else x for name, x in inputs.items()}
    return replace(case, statement=replace(statement, **values), inputs=inputs)


@pytest.mark.parametrize("name", [*CLOSED, *BY_CLARABEL, *BY_CASADI])
def test_the_truth_is_the_derivative_of_the_solution(name: str) -> None:
    case, known = settled(name)
    draw, step = np.random.default_rng(0), 1e-6
    directions = {key: draw.standard_normal(x.shape) for key, x in case.inputs.items()}
    for key in directions:
        if key in ("Q", "X"):
            directions[key] += directions[key].mT
    ahead, behind = (
        truth(moved(case, {key: x + sign * step * directions[key] for key, x in case.inputs.items()})).y
        for sign in (1, -1)
    )
    slopes = ((ahead - behind) / (2 * step) * case.cotangent).sum(-1)
    wanted = sum((known.gradients[key] * directions[key]).reshape(case.batch, -1).sum(-1) for key in directions)
    np.testing.assert_allclose(slopes, wanted, rtol=1e-4, atol=1e-6 * abs(wanted).max())


@pytest.mark.parametrize("number", PROBLEMS)
def test_published_values_are_reached(number: int) -> None:
    pytest.importorskip("casadi")
    problem = PROBLEMS[number]
    programme = problem.programme(np.ones((1, 2)))
    y = truth(Case(programme, {"p": programme.p}, np.ones_like(programme.start))).y[0]
    value = problem.objective(np, np.ones(2), list(y))
    assert value == pytest.approx(problem.value, rel=1e-6, abs=1e-9)


def honest(known: Truth) -> Answer:
    return Answer(known.y.copy(), {key: x.copy() for key, x in known.gradients.items()}, np.ones(len(known.y), bool))


def test_a_right_answer_is_right() -> None:
    case, known = settled("simplex")
    judged = judge(case, honest(known), known)
    assert (judged.silent, judged.loud, judged.gradient_error, judged.solution_error) == (0, 0, 0.0, 0.0)


@pytest.mark.parametrize("lie", ["solution", "gradient"])
def test_a_lie_is_a_silent_failure_and_an_admission_a_loud_one(lie: str) -> None:
    case, known = settled("simplex")
    answer = honest(known)
    if lie == "solution":
        answer.y[0] += 0.5
    else:
        answer.gradients["q"][0] *= -1
    judged = judge(case, answer, known)
    assert (judged.silent, judged.loud) == (1, 0)
    admitted = judge(case, replace(answer, solved=np.array([False, True])), known)
    assert (admitted.silent, admitted.loud) == (0, 1)
    assert admitted.gradient_error == 0.0  # of what is claimed


def test_what_is_not_finite_is_loud() -> None:
    case, known = settled("simplex")
    answer = honest(known)
    answer.gradients["q"][1, 3] = np.nan
    assert judge(case, answer, known).loud == 1


def test_a_large_gradient_in_one_input_hides_no_wrong_one_in_another() -> None:
    case, known = settled("dense-qp")
    known = Truth(known.y, {**known.gradients, "G": 10 * known.gradients["G"]})
    answer = honest(known)
    answer.gradients["b"] *= -1
    assert judge(case, answer, known).silent == case.batch
    assert judge(case, answer, known).gradient_error == pytest.approx(2.0)


def test_small_solutions_are_judged_by_their_size() -> None:
    case, known = settled("transport-10")
    answer = honest(known)
    answer.y[0] = 1 / 64  # a plan that ignores the costs: off by less than 0.1
    judged = judge(case, answer, known)
    assert judged.solution_error > 0.1
    assert judged.silent == 1


def test_who_has_warned_of_a_batch_is_not_silently_wrong() -> None:
    case, known = settled("simplex")
    answer = honest(known)
    answer.gradients["q"][0] *= -1
    judged = judge(case, replace(answer, warned="did not converge"), known)
    assert (judged.silent, judged.loud, judged.gradient_error) == (0, 1, 0.0)
    assert judge(case, replace(honest(known), warned="did not converge"), known).loud == 0


def test_doubts_are_heard_and_other_words_are_not() -> None:
    case, known = settled("simplex")

    def forward(says: Callable[[], Any]) -> Any:
        says()
        return Solved(known.y, lambda: known.gradients)

    def heard(says: Callable[[], Any]) -> str:
        return measure(lambda: forward(says), case, 0.0, limit=0.0)[1].warned

    assert heard(lambda: warnings.warn("Sinkhorn did not converge", stacklevel=1)) == "Sinkhorn did not converge"
    assert "inaccurate" in heard(lambda: print("qpth warning: Returning an inaccurate solution"))
    assert heard(lambda: warnings.warn("this name is deprecated", stacklevel=1)) == ""


def test_a_truth_that_rounding_could_spoil_is_none() -> None:
    np.testing.assert_allclose(Refined(np.diag([1.0, 2.0])).proved(np.ones(2)), [1.0, 0.5])
    hilbert = 1.0 / (1 + np.add.outer(np.arange(12.0), np.arange(12.0)))
    Refined(hilbert).solve(np.ones(12))
    with pytest.raises(NoTruthError, match="conditioned"):
        Refined(hilbert).proved(np.ones(12))


@pytest.mark.parametrize("name", BY_CASADI)
def test_formulas_are_the_same_in_torch_and_casadi(name: str) -> None:
    casadi = pytest.importorskip("casadi")
    case = FAMILIES[name].make(*FAMILIES[name].quick[0], 0)
    programme = case.statement
    assert isinstance(programme, Programme)
    p, u = programme.p[0], programme.start[0] + 0.1 * np.random.default_rng(1).uniform(0.1, 1, len(programme.start[0]))
    found = [_values(programme.functions(torch_operations()), torch.tensor(p), torch.tensor(u))]
    found.append(_values(programme.functions(casadi_operations()), casadi.DM(p), casadi.DM(u)))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-12, atol=1e-12)


def _values(functions: Functions, p: Any, u: Any) -> Any:
    parts = [functions.objective, functions.equality, functions.inequality]
    values = [one(p, u) for one in parts if one is not None]
    return np.concatenate([np.asarray(x.numpy() if isinstance(x, torch.Tensor) else x).ravel() for x in values])


def test_either_sign_of_an_eigenvector_is_right() -> None:
    case, known = settled("eigenvector")
    answer = honest(known)
    answer.y[0] *= -1
    answer.gradients["X"][0] *= -1
    assert judge(case, answer, known).silent == 0


def test_another_local_solution_is_no_failure_but_a_wrong_gradient_there_is() -> None:
    pytest.importorskip("casadi")
    two_wells = Programme(
        lambda m: Functions(lambda p, u: m.total((u**2 - 1) ** 2 + p * u)),
        np.full((1, 1), 0.1), np.full((1, 1), -1.0), np.full(1, -np.inf), np.full(1, np.inf),
    )  # fmt: skip
    case = Case(two_wells, {"p": two_wells.p}, np.ones((1, 1)))
    known = truth(case)
    other = truth(replace(case, statement=replace(two_wells, start=np.ones((1, 1)))))
    assert known.y[0, 0] < 0 < other.y[0, 0]
    assert judge(case, honest(other), known).elsewhere == 1
    wrong = honest(other)
    wrong.gradients["p"] *= 2
    assert judge(case, wrong, known).silent == 1


# Verdicts.


def row(library: str, total: float, error: float = 1e-9, **changes: Any) -> Row:
    judged = {"solution_error": error, "gradient_error": error, "usual_error": error, "loud": 0, "silent": 0}
    times = {"first": 1.0, "forward": total / 2e3, "backward": total / 2e3, "low": 0.0, "high": 1.0}
    record = {
        "times": times | {"repeats": 3, "memory": 1},
        "judgement": judged | {"elsewhere": 0} | {k: v for k, v in changes.items() if k in ("silent", "loud")},
    }
    shape = changes.get("family", "pendulum"), changes.get("size", 30), changes.get("batch", 32)
    found = row_of(Cell(*shape, library, changes.get("variant", "default")), record)
    assert found is not None
    return found


def test_the_fastest_of_the_accurate_wins() -> None:
    rows = [row("ours", 10.0), row("casadi", 20.0), row("pounce", 1.0, error=1e-3), row("casadi", 5.0, silent=1)]
    (tight,), (rough,) = contests(rows, 1e-6), contests(rows, 1e-2)
    assert tight.won
    assert tight.factor == pytest.approx(2.0)
    assert not rough.won
    assert rough.factor == pytest.approx(0.1)
    assert "lost 10 times" in str(rough)


def test_nobody_wins_alone_unless_others_were_asked() -> None:
    assert contests([row("ours", 1.0)], 1e-6) == []
    (contest,) = contests([row("ours", 1.0), row("casadi", 1.0, silent=1)], 1e-6)
    assert "nobody else is accurate in time (casadi (default) takes 1 ms, 1 silently wrong, gradients to 1e-09)" in str(
        contest
    )
    told = criteria([row("ours", 1.0), row("casadi", 1.0, silent=1)])[1].evidence
    assert told == "1 of 1 (to 1e-6; 1 of them because nobody else is accurate in time)"


def test_who_was_not_asked_neither_wins_nor_loses() -> None:
    ours, other = row("ours", 1.0), row("casadi", 2.0)
    for one, rest in ((ours, other), (other, ours)):
        unasked = row_of(Cell(*one.shape, one.library, one.variant), {"skipped": f"{NOT_MEASURED}: the time was over"})
        assert unasked is not None
        assert contests([rest, unasked], 1e-6) == []
    late = row_of(Cell(*other.shape, "casadi", "default"), {"timeout": 15.0})
    assert late is not None
    assert late.note == "too slow: not done after 15 s"
    assert contests([ours, late], 1e-6)[0].won


def test_what_the_spread_does_not_tell_apart_is_said() -> None:
    near = [replace(row("ours", 10.0), low=9.0, high=12.0), replace(row("casadi", 11.0), low=10.0, high=12.0)]
    far = [near[0], replace(near[1], low=20.0, total=21.0, high=22.0)]
    assert "within the spread" in str(contests(near, 1e-6)[0])
    assert "within the spread" not in str(contests(far, 1e-6)[0])


def test_standings_are_relative_to_the_fastest_of_the_accurate() -> None:
    rows = [row("ours", 10.0), row("casadi", 20.0), row("pounce", 1.0, silent=3), row("ours", 80.0, batch=1)]
    rows += [row("casadi", 10.0, batch=1), row("casadi", 1.0, error=1e-3, batch=1, variant="tight")]
    found = standings(rows)
    ours, casadi, pounce = (found["pendulum", name] for name in ("ours", "casadi", "pounce"))
    assert (ours.attempted, ours.accurate, ours.fastest, ours.silent) == (2, 2, 1, 0)
    assert ours.slower == pytest.approx(8**0.5)
    assert casadi.slower == pytest.approx(2**0.5)
    assert (pounce.accurate, pounce.silent) == (0, 3)
    page = build(rows, Plan())
    assert "3 wrong" in page
    assert "Fastest to 1e-6, of 2 batches: ours in 1, casadi in 1" in page


def test_not_to_answer_is_to_lose() -> None:
    (contest,) = contests([row("ours", 1.0, loud=1), row("casadi", 20.0)], 1e-6)
    assert not contest.won
    assert "not accurate enough" in str(contest)


def test_criteria_are_computed_from_the_rows() -> None:
    won, lost = [row("ours", 1.0), row("casadi", 2.0)], [row("ours", 3.0), row("casadi", 2.0)]
    assert [one.holds for one in criteria(won)] == [True, True, None, None]
    assert [one.holds for one in criteria(lost)] == [True, False, None, None]
    assert criteria([row("ours", 1.0, silent=2)])[0].holds is False
    transport = [row("ours", 3.0, family="transport-1", size=50), row("POT", 2.0, family="transport-1", size=50)]
    assert criteria(transport)[3].holds is False
    assert criteria([replace(one, size=49) for one in transport])[3].holds is None


def test_a_page_says_losses_first_and_marks_the_silent() -> None:
    rows = [row("ours", 3.0), row("casadi", 2.0), row("ours", 1.0, batch=1), row("pounce", 9.0, silent=7, batch=1)]
    found = verdict("pendulum", rows)
    assert found.sentences[0].startswith("pendulum 30 x 32: lost 1.5 times")
    assert "7 problems" in found.sentences[-1]
    page = build(rows, Plan())
    assert page.index("Where we lose") < page.index("All cells")
    assert '<tr class="silent">' in page
    assert 'href="field/index.html"' in piece(rows)


# The command.


class Liar:
    """Stands for the processes of the libraries: it answers with the truth, or claims what is false."""

    asked = 0
    lies = False
    seconds = 0.0

    def __init__(self, logs: Path) -> None:
        pass

    def close(self) -> None:
        pass

    def ask(self, library: str, request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        Liar.asked += 1
        case = FAMILIES[request["family"]].make(request["size"], request["batch"], request["seed"])
        known = truth(case)
        said = {"solved": np.ones(case.batch, bool), "warned": ""}
        np.savez(request["place"], y=known.y + Liar.lies, **said, **known.gradients)
        times = {"first": 1, "forward": 1, "backward": 1, "low": 1, "high": 1, "repeats": 1, "memory": 1}
        return {"times": times, "seconds": Liar.seconds}


@pytest.fixture
def liar(monkeypatch: pytest.MonkeyPatch) -> type[Liar]:
    monkeypatch.setattr(run, "Processes", Liar)
    monkeypatch.setattr(run, "build", lambda *_: "")
    monkeypatch.setattr(Liar, "asked", 0)
    monkeypatch.setattr(Liar, "lies", False)
    return Liar


WORDS = ("field", "--quick", "--only", "simplex", "--libraries", "ours")


def test_what_is_measured_is_kept_and_forced_anew(tmp_path: Path, liar: type[Liar]) -> None:
    assert command(tmp_path, *WORDS) == 0
    once = liar.asked
    assert once > 0
    assert command(tmp_path, *WORDS) == 0
    assert liar.asked == once
    assert command(tmp_path, *WORDS, "--force") == 0
    assert liar.asked == 2 * once


def test_a_run_of_one_family_keeps_what_is_known_of_others(tmp_path: Path, liar: type[Liar]) -> None:
    assert command(tmp_path, *WORDS) == 0
    assert command(tmp_path, "field", "--quick", "--only", "transport-1", "nobody", "--libraries", "ours") == 0
    once = liar.asked
    families = {line["family"] for line in read_csv(tmp_path / "field" / "field.csv")}
    assert families == {"simplex", "transport-1", "transport-10", "transport-100"}
    assert command(tmp_path, *WORDS) == 0
    assert liar.asked == once
    assert len(read_csv(tmp_path / "field" / "field.csv")) == 4


@pytest.mark.parametrize("name", [name for name in LIBRARIES if name not in ("ours", "plain torch")])
def test_every_rival_has_a_tight_setting_and_one_matched_to_the_bar(name: str) -> None:
    variants = list(LIBRARIES[name].variants)
    assert any("tight" in variant for variant in variants)
    assert any("to the bar" in variant for variant in variants) or name == "casadi"  # whose default is 1e-8
    assert len(variants) >= 3


SMALL = {"logistic": ("jaxopt", "optimistix", "plain torch", "casadi"), "transport-10": ("OTT", "POT", "plain torch")}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jaxopt is no longer maintained
@pytest.mark.parametrize(("family", "name"), [(family, name) for family in SMALL for name in SMALL[family]])
def test_accurate_settings_meet_the_bar(family: str, name: str) -> None:
    """A rival is not disqualified by an option that was left out."""
    if not LIBRARIES[name].installed:
        pytest.skip(f"{name} is not installed")
    case, known = settled(family)
    for variant in LIBRARIES[name].variants:
        if not variant.endswith(("tight", "implicit")):
            continue
        answer = measure(LIBRARIES[name].build(case, variant), case, 0.0, limit=0.0)[1]
        judged = judge(case, answer, known)
        assert judged.loud == judged.silent == 0, variant
        assert judged.gradient_error < 1e-6, variant


def test_a_lie_of_ours_is_an_exit_code(tmp_path: Path, liar: type[Liar], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liar, "lies", True)
    assert command(tmp_path, *WORDS) == 1


def test_the_quick_benchmark_runs_in_processes_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, "field", "--quick", "--only", "simplex", "--libraries", "ours") == 0
    assert "no silent failure of ours in any cell: 0 in 1 cells" in capsys.readouterr().out
    page = (tmp_path / "field" / "index.html").read_text(encoding="utf-8")
    assert "Projection onto the simplex" in page
    assert "data:image/png" in page
    assert (tmp_path / "field" / "field.csv").read_text(encoding="utf-8").count("\n") == 2


@pytest.mark.parametrize(
    ("behaviour", "wanted"),
    [
        (lambda *_: {"times": 1}, {"times": 1}),
        (lambda *_: time.sleep(30), {"timeout": 0.05}),
        (lambda *_: os._exit(3), {"error": "its process has ended, status 3"}),
    ],
    ids=["answers", "hangs", "ends"],
)
def test_neither_a_hanging_nor_a_dying_cell_hurts(
    behaviour: Any, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "cell", behaviour)
    found = worker.answer("ours", {"limit": 0.05})
    assert found.pop("seconds") < 1
    assert found == wanted


def test_what_ran_out_of_time_is_not_asked_for_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Slow(Liar):
        def ask(self, library: str, request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
            asked.append((request["size"], request["batch"]))
            return {"timeout": 1.0}

    monkeypatch.setattr(run, "Processes", Slow)
    monkeypatch.setattr(run, "build", lambda *_: "")
    family = replace(FAMILIES["simplex"], shapes=((20, 1), (20, 2), (10, 4)))
    monkeypatch.setitem(FAMILIES, "simplex", family)
    command(tmp_path, "field", "--only", "simplex", "--libraries", "ours")
    assert asked == [(20, 1), (10, 4)]


def test_problems_that_are_only_numbered_are_all_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(Plan(("nonconvex",), libraries=("ours",)), tmp_path, Liar(tmp_path))  # type: ignore[arg-type]
    first, later = (one for one in bench.pieces() if one.cell.variant == "called" and one.cell.size in (1, 79))
    monkeypatch.setattr(Piece, "result", lambda one: {"timeout": 1.0} if one == first else None)
    assert smaller_timeout(later.cell, bench) is None


def test_a_library_that_has_used_up_its_time_is_told_so(
    tmp_path: Path, liar: type[Liar], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liar, "seconds", 1e3)
    monkeypatch.setitem(FAMILIES, "simplex", replace(FAMILIES["simplex"], quick=((20, 1), (20, 2))))
    for _ in range(2):  # again, after an interruption: what was used is not forgotten
        assert command(tmp_path, *WORDS) == 0
        assert liar.asked == 1
        assert "the library has used up its time" in (tmp_path / "field" / "field.csv").read_text(encoding="utf-8")


def test_when_the_time_is_over_the_page_is_written_and_the_next_run_continues(tmp_path: Path, liar: type[Liar]) -> None:
    assert command(tmp_path, *WORDS, "--minutes", "-1") == 0
    assert liar.asked == 0
    assert "the time of the run was over" in (tmp_path / "field" / "field.csv").read_text(encoding="utf-8")
    assert command(tmp_path, *WORDS) == 0
    assert liar.asked == 1


# What results depend on.


def test_results_are_those_of_the_code_without_its_words(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    digests = []
    for text in ("x = 1", '"""Words."""\nx = 1  # more', "x = 2", "VARIANTS = 3\nx = 1"):
        path.write_text(text, encoding="utf-8")
        code_digest.cache_clear()
        digests.append(code_digest(tmp_path))
    code_digest.cache_clear()
    first, commented, changed, chosen = digests
    assert first == commented == chosen != changed


def test_a_change_of_our_code_makes_our_cells_new_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, other = LIBRARIES["ours"], LIBRARIES["plain torch"]
    for folder in ours.folders:
        shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.setattr(library, "ROOT", tmp_path)
    before = ours.identity, other.identity
    with open(tmp_path / ours.folders[0] / "node.py", "a", encoding="utf-8") as file:
        file.write("\nCHANGED = True\n")
    code_digest.cache_clear()
    after = ours.identity, other.identity
    code_digest.cache_clear()
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_a_new_version_of_what_a_library_stands_on_makes_its_cells_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(Plan(("simplex",)), tmp_path, Liar(tmp_path))  # type: ignore[arg-type]
    cells = [Cell("simplex", 100, 1, name, "default") for name in ("jaxopt", "plain torch")]
    before = [bench.piece(cell).call.args for cell in cells]
    cells_module.dependencies.cache_clear()
    monkeypatch.setitem(cells_module.DEPENDENCIES, "jaxopt", ("numpy",))
    after = [bench.piece(cell).call.args for cell in cells]
    cells_module.dependencies.cache_clear()
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_a_truth_is_that_of_all_numbers_not_of_the_inputs_alone() -> None:
    family = FAMILIES["lq-control"]
    case = family.make(*family.quick[0], 0)
    statement = case.statement
    assert isinstance(statement, Quadratic)
    assert "h" not in case.inputs
    assert truth_digest(case, family) == truth_digest(family.make(*family.quick[0], 0), family)
    for changed in (replace(statement, h=statement.h + 1), replace(statement, A=2 * statement.A)):
        assert truth_digest(replace(case, statement=changed), family) != truth_digest(case, family)


# Processes.


def test_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(size: int, batch: int, seed: int) -> Case:  # noqa: ARG001
        np.ones(2 * worker.ROOM // 8)
        raise AssertionError

    monkeypatch.setitem(FAMILIES, "simplex", replace(FAMILIES["simplex"], make=greedy))
    request = {"family": "simplex", "size": 1, "batch": 1, "seed": 0, "limit": 60}
    assert "MemoryError" in worker.answer("ours", request)["error"]


def test_a_process_that_is_gone_is_replaced(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    request = {"family": "simplex", "size": 5, "batch": 1, "seed": 0, "budget": 0.0, "limit": 60.0}
    request |= {"variant": "unrolled", "place": str(tmp_path / "answer.npz")}
    try:
        assert "times" in processes.ask("plain torch", request)
        running = processes._running["plain torch"].process
        running.kill()
        running.wait()
        assert "error" in processes.ask("plain torch", request)
        assert "times" in processes.ask("plain torch", request)
    finally:
        processes.close()


def test_an_unknown_family_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, "field", "--only", "nothing") == 2
    assert "there are dense-qp" in capsys.readouterr().err
