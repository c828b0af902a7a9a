"""The paper's finding - the cheap gradient is good early in training and bad late - as a training device."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from .arguments import is_number, require_counts, require_flags
from .gradients import RULES, Rule, as_rows, as_rule
from .linear.contract import Pair
from .reports.probes import Probe, as_probes, draw_probes, write_probes
from .structure import Point
from .theory.certificate import certify
from .theory.propositions import cosine
from .theory.schur_complement import SchurComplement
from .torchside import value_is_hidden

__all__ = ["Adaptive", "Probe"]


class Adaptive(Rule):
    """The cheap gradient for as long as it points the same way as the exact one, and the exact one after that.

    The first backward pass, and every ``probe_every``-th after it, is a probe: both gradients are computed, the exact
    one is used, and their cosines are compared problem by problem. Between probes only one gradient is computed.

    A probe sees the gradients of the layer's own inputs, and nothing of what lies before it. A cheap gradient that also
    moves all scores together, which transport does not notice, looks right to every probe, while the scores drift away:
    centre them before the layer (``scores - scores.mean(...)``).

    **This rule has state**, unlike the nodes: give each node an instance of its own (a shared one makes one decision
    for all of its nodes), and save ``rule.state_dict()`` beside that of the model. Copies and pickles carry the state
    along. What is counted are backward passes through the node: a node that is used twice in a loss counts two
    for each step. In distributed training each replica decides for itself, on its own part of the batch.

    Always exact, and neither counted nor probed, are: forward mode; ``torch.func`` transforms and batched gradients,
    where a decision cannot depend on values; the pass that ``create_graph=True`` records (the one that then
    differentiates it is an ordinary one); and losses that use the multipliers.

    With ``certified`` there are no probes: in every pass the cheap gradient is used if it is *proven* to descend for
    each problem of the batch (:func:`declarative.theory.certificate.certify`), and the exact one if not. For an input
    that the batch shares nothing is proven. What it needs, and when it pays, is said there.

    Args:
        cheap: the approximate rule, a name or an instance.
        probe_every: how many backward passes from one probe to the next.
        threshold: the cosine that a problem's cheap gradient must reach, 0.9 unless said otherwise. That saves the most
            backward work; to end a run as low as the exact gradient would, about 0.99 is needed (in optimal transport
            the cosine is above 0.9 for most of the training, and the loss suffers nevertheless). With ``certified`` it
            is the share of the decrease promised by the cheap gradient that must be proven to be kept,
            g'g_hat / ||g_hat||^2, and 0 unless said otherwise.
        fraction: the share of the batch that must reach it, half of it unless said otherwise; with ``certified`` all.
        patience: how many probes in a row must fail before the exact gradient takes over.
        returns: whether to go on probing after that, and back to the cheap gradient when a probe succeeds.
        keep: how many probes to remember.
        certified: whether to prove instead of probing; or a function of the point that returns a SchurComplement, if
            more is known of it than the library finds out.

    Example:
        >>> import torch
        >>> from declarative import Adaptive, DeclarativeNode
        >>> rule = Adaptive("unconstrained", probe_every=2, threshold=0.5)
        >>> sphere = DeclarativeNode(lambda x, u: (u - x).square().sum(), lambda x, u: u.square().sum() - 1,
        ...                          solver=lambda x: torch.nn.functional.normalize(x), gradient=rule)
        >>> x = torch.tensor([[3.0, 4.0]], requires_grad=True)
        >>> for step in range(3):
        ...     print(torch.autograd.grad(sphere(x)[0, 0], x)[0])
        tensor([[ 0.1280, -0.0960]])
        tensor([[1., 0.]])
        tensor([[ 0.1280, -0.0960]])
        >>> rule
        Adaptive(cheap=Unconstrained(), now cheap, 1 of 3 backward passes were cheap, last cosine 0.80)
    """

    differentiates_multipliers = True

    def __init__(
        self,
        cheap: str | Rule = "unconstrained",
        probe_every: int = 50,
        threshold: float | None = None,
        *,
        fraction: float | None = None,
        patience: int = 1,
        returns: bool = False,
        keep: int = 1000,
        certified: bool | Callable[[Point], SchurComplement] = False,
    ) -> None:
        require_counts(probe_every=probe_every, patience=patience, keep=keep)
        if isinstance(certified, type):
            raise TypeError(f"certified must be True, False or a function of the point, but is {certified!r}.")
        require_flags(returns=returns, **({} if callable(certified) else {"certified": certified}))
        threshold = (0.0 if certified else 0.9) if threshold is None else threshold
        fraction = (1.0 if certified else 0.5) if fraction is None else fraction
        if not is_number(threshold) or not -1 <= threshold <= 1:
            raise ValueError(f"threshold is a cosine and must be between -1 and 1, but is {threshold!r}.")
        if not is_number(fraction) or not 0 < fraction <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, but is {fraction!r}.")
        self.cheap = as_rule(cheap)
        if isinstance(self.cheap, Adaptive):
            raise TypeError("cheap must be one of the approximate rules, but is itself adaptive.")
        self.probe_every = probe_every
        self.threshold = threshold
        self.fraction = fraction
        self.patience = patience
        self.returns = returns
        self.certified = certified
        self.calls = 0
        self.cheap_calls = 0
        self.uses_cheap = True
        self._failed = 0  # probes in a row
        self._due = 0  # the call of the next probe
        self._history: deque[Probe] = deque(maxlen=min(keep, sys.maxsize))
        self._lock = threading.Lock()

    @property
    def history(self) -> tuple[Probe, ...]:
        """The probes that are remembered, oldest first."""
        with self._lock:
            return tuple(self._history)

    def solve(self, point: Point, v: Tensor, w: Tensor) -> Pair:
        """The exact pair: what forward mode uses."""
        return RULES["exact"].solve(point, v, w)

    def pull(self, point: Point, v: Tensor, w: Tensor, wanted: Sequence[int]) -> tuple[Tensor, ...]:
        exact = RULES["exact"]
        if torch.is_grad_enabled() or value_is_hidden(v) or value_is_hidden(w) or bool(w.any()):
            return exact.pull(point, v, w, wanted)
        if self.certified:
            return self._prove(point, v, w, wanted)
        with self._lock:
            call, cheap = self.calls, self.uses_cheap
            probing = call >= self._due and (cheap or self.returns)
            self.calls += 1
            self.cheap_calls += cheap and not probing
            if probing:
                self._due = call + self.probe_every
        if probing:
            return self._probe(call, point, v, w, wanted)
        return (self.cheap if cheap else exact).pull(point, v, w, wanted)

    def _complement(self, point: Point) -> SchurComplement | None:
        """What the user knows of the problems, if anything."""
        if not callable(self.certified):
            return None
        complement: object = self.certified(point)
        if not isinstance(complement, SchurComplement):
            raise TypeError(f"certified must return a SchurComplement, but returned {type(complement).__name__}.")
        return complement

    def _prove(self, point: Point, v: Tensor, w: Tensor, wanted: Sequence[int]) -> tuple[Tensor, ...]:
        """The cheap gradient if it is proven to descend, else the exact one."""
        used = v.ne(0).any(-1)
        proven = False
        cheap: tuple[Tensor, ...] = ()
        if bool(used.any()) and all(point.batch.in_dims[i] is not None for i in wanted):
            cheap = self.cheap.pull(point, v, w, wanted)
            proof = certify(point, v, cheap, wanted, self._complement(point), share=self.threshold)
            proven = float(proof.descends[used].double().mean()) >= self.fraction
        with self._lock:
            self.uses_cheap = proven
            self.calls += 1
            self.cheap_calls += proven
        return cheap if proven else RULES["exact"].pull(point, v, w, wanted)

    def _probe(self, call: int, point: Point, v: Tensor, w: Tensor, wanted: Sequence[int]) -> tuple[Tensor, ...]:
        """Compute both gradients of every problem, compare them, and return the exact one."""
        shared = [point.batch.in_dims[i] is None for i in wanted]
        exact = RULES["exact"].pull_each(point, v, w, wanted)
        cheap = self.cheap.pull_each(point, v, w, wanted)
        used = v.ne(0).any(-1)  # a problem that the loss does not use has no direction
        if bool(used.any()):
            self._decide(call, cosine(as_rows(exact, v), as_rows(cheap, v))[used])
        else:
            with self._lock:
                self._due = call + 1
        return tuple(grad.sum(0) if one else grad for grad, one in zip(exact, shared, strict=True))

    def _decide(self, call: int, angles: Tensor) -> None:
        agreeing = float((angles >= self.threshold).double().mean())  # NaN does not agree
        good = agreeing >= self.fraction
        with self._lock:
            self._failed = 0 if good else self._failed + 1
            self.uses_cheap = good or (self.uses_cheap and self._failed < self.patience)
            self._history.append(
                Probe(
                    call, float(angles.min()), float(angles.median()), float(angles.mean()), agreeing, self.uses_cheap
                )
            )

    def records(self) -> list[dict[str, float]]:
        """The history as plain dictionaries, for a data frame or a logger."""
        return [dataclasses.asdict(probe) for probe in self.history]

    def to_csv(self, path: str | PathLike[str]) -> None:
        """Write the history as a table with one line per probe."""
        write_probes(path, self.history)

    def plot(self, ax: Any = None) -> Any:
        """Draw the cosines of the probes and the threshold into matplotlib axes, which are returned."""
        return draw_probes(self.history, self.threshold, ax)

    def state_dict(self) -> dict[str, Any]:
        """What the rule has counted and decided, in plain types: goes into a checkpoint."""
        with self._lock:
            return {
                "calls": self.calls,
                "cheap_calls": self.cheap_calls,
                "uses_cheap": self.uses_cheap,
                "failed": self._failed,
                "due": self._due,
                "history": [dataclasses.asdict(probe) for probe in self._history],
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned; the configuration stays that of this instance."""
        if not isinstance(state, dict):
            raise TypeError(f"state must be what state_dict() returned, but is {type(state).__name__}.")
        missing = self.state_dict().keys() ^ state.keys()
        if missing:
            names = sorted(map(str, missing))
            raise ValueError(f"this is not the state of an Adaptive rule: missing or unexpected {names}.")
        require_counts(0, **{name: state[name] for name in ("calls", "cheap_calls", "failed", "due")})
        require_flags(uses_cheap=state["uses_cheap"])
        history = as_probes(state["history"])
        with self._lock:
            self.calls, self.cheap_calls = state["calls"], state["cheap_calls"]
            self.uses_cheap, self._failed, self._due = state["uses_cheap"], state["failed"], state["due"]
            self._history = deque(history, self._history.maxlen)

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {name: value for name, value in vars(self).items() if name != "_lock"} | {
                "_history": self._history.copy()
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        last = f", last cosine {self.history[-1].median:.2f}" if self.history else ""
        now = "cheap" if self.uses_cheap else "exact"
        counts = f"{self.cheap_calls} of {self.calls} backward passes were cheap"
        return f"Adaptive(cheap={self.cheap!r}, now {now}, {counts}{last})"
