"""Layers for quadratic programs: qpth, proxsuite, libdqp and moreau, all through torch."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import scipy.sparse

from ..cases import Case, DoesNotApplyError, Forward, Quadratic, Simplex
from .library import QUADRATIC, Library, quadratic_through_torch, tensors, through_torch

TIGHT = 1e-12
BAR = 1e-9  # which leaves gradients that are right to 1e-6


def _equalities(A: Any, b: Any) -> tuple[Any, Any]:
    """As these libraries want them: empty tensors where there are none."""
    none = importlib.import_module("torch").Tensor()
    return (A, b) if b.shape[1] else (none, none)


def _qpth(case: Case, variant: str) -> Forward:
    options = {
        "tight": {"eps": TIGHT, "notImprovedLim": 10, "maxIter": 100},
        "to the bar": {"eps": BAR, "notImprovedLim": 10, "maxIter": 100},
    }.get(variant, {})
    solve = importlib.import_module("qpth.qp").QPFunction(verbose=0, check_Q_spd=False, **options)
    return quadratic_through_torch(case, lambda Q, q, A, b, G, h: solve(Q, q, G, h, *_equalities(A, b)))


def _proxsuite(case: Case, variant: str) -> Forward:
    torch = importlib.import_module("torch")
    options = {
        "tight": {"eps": TIGHT, "eps_backward": 1e-10, "rho_backward": 1e-10, "mu_backward": 1e-10},
        "to the bar": {"eps": BAR, "eps_backward": 1e-8, "rho_backward": 1e-8, "mu_backward": 1e-8},
    }.get(variant, {})
    solve = importlib.import_module("proxsuite.torch.qplayer").QPFunction(**options)
    low = torch.full(case.quadratic().h.shape, -1e20, dtype=torch.float64)
    return quadratic_through_torch(case, lambda Q, q, A, b, G, h: solve(Q, q, *_equalities(A, b), G, low, h)[0])


def _libdqp(case: Case, variant: str) -> Forward:
    """One problem after the other, sparse where the problem is; with the solver its examples use where it is free."""
    module = importlib.import_module("dqp")
    torch = importlib.import_module("torch")
    program = case.quadratic()
    options = {
        "tight": {"eps_abs": 1e-10, "eps_active": 1e-7},
        "to the bar": {"eps_abs": 1e-8, "eps_active": 1e-6},
    }.get(variant, {})
    kind = {"solve_type": "sparse" if program.sparse else "dense", "qp_solver": "piqp"}
    layer = module.dQP_layer(settings=module.build_settings(**kind, **options))
    alone = program.batch == 1
    if program.sparse and not alone:
        raise DoesNotApplyError("sparse matrices without a batch only")
    if program.sparse:
        matrices = {name: _torch_csc(getattr(program, name), torch) for name in ("Q", "A", "G")}
        fixed = matrices | tensors({name: getattr(program, name)[0] for name in ("q", "b", "h")})
    else:
        dense = tensors({name: getattr(program.dense(), name) for name in QUADRATIC})
        fixed = {name: x[0] if alone else x for name, x in dense.items()}

    def function(xs: dict[str, Any]) -> Any:
        xs = {name: x[0] for name, x in xs.items()} if alone else xs
        Q, q, A, b, G, h = ((fixed | xs)[name] for name in QUADRATIC)
        none = program.b.shape[1] == 0
        y = layer(Q, q, G, h, None if none else A, None if none else b)[0]
        return y.reshape(program.q.shape)

    return through_torch(case, function)


def _torch_csc(matrix: Any, torch: Any) -> Any:
    matrix = matrix.tocsc()
    return torch.sparse_csc_tensor(
        torch.tensor(matrix.indptr, dtype=torch.int64),
        torch.tensor(matrix.indices, dtype=torch.int64),
        torch.tensor(matrix.data),
        size=matrix.shape,
    )


def _moreau(case: Case, variant: str) -> Forward:
    """minimise x'Px/2 + q'x, Ax + s = b: equalities first, then inequalities, in CSR."""
    torch, moreau = importlib.import_module("torch"), importlib.import_module("moreau")
    program = case.quadratic()
    csr = scipy.sparse.csr_array
    patterns = [program.one(0)[i] for i in (0, 2, 4)]
    full = not program.sparse
    Q, A, G = (csr(np.ones_like(one)) if full else csr(one) for one in patterns)
    rows = csr(scipy.sparse.vstack([A, G]))
    cones = moreau.Cones(num_zero_cones=A.shape[0], num_nonneg_cones=G.shape[0])
    tolerance = {"tight": TIGHT, "to the bar": BAR}.get(variant)
    tolerances = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), tolerance)
    ipm = {"ipm_settings": moreau.IPMSettings(**tolerances), "solver": "ipm"} if tolerance else {}
    settings = moreau.Settings(device="cpu", batch_size=program.batch, enable_grad=True, **ipm)
    places = [torch.tensor(x, dtype=torch.int64) for m in (Q, rows) for x in (m.indptr, m.indices)]
    solver = importlib.import_module("moreau.torch").Solver(Q.shape[0], rows.shape[0], *places, cones, settings)
    names = QUADRATIC if full else ("q", "b", "h")
    fixed = tensors({name: getattr(program, name) for name in names})
    shared = torch.tensor(Q.data).expand(program.batch, -1), torch.tensor(rows.data).expand(program.batch, -1)

    def function(xs: dict[str, Any]) -> Any:
        data = fixed | xs
        values = shared
        if full:
            values = data["Q"].flatten(1), torch.cat([data["A"].flatten(1), data["G"].flatten(1)], 1)
        return solver.solve(*values, data["q"], torch.cat([data["b"], data["h"]], 1)).x

    def claims() -> Any:
        status = solver.info.status
        return [one == moreau.SolverStatus.Solved for one in (status if isinstance(status, list) else [status])]

    return through_torch(case, function, claims)


# By name: the module, what builds a forward pass, and how it is used as it comes, tightly and to the bar.
USES = {
    "qpth": ("qpth.qp", _qpth, "QPFunction as it comes (eps 1e-12)", "up to 100 iterations", "the same with eps 1e-9"),
    "proxsuite": (
        "proxsuite.torch.qplayer", _proxsuite,
        "QPFunction as it comes (eps 1e-9, eps_backward 1e-4)", "eps 1e-12, backward 1e-10",
        "eps 1e-9, backward 1e-8",
    ),
    "libdqp": (
        "dqp", _libdqp,
        "dQP_layer with PIQP at its tolerance", "eps 1e-10, active set to 1e-7", "eps 1e-8, active set to 1e-6",
    ),
    "moreau": (
        "moreau.torch", _moreau,
        "moreau.torch.Solver as it comes", "interior point to 1e-12", "interior point to 1e-9",
    ),
}  # fmt: skip
LAYERS = tuple(
    Library(name, name, module, (Quadratic, Simplex), {"default": usual, "tight": tight, "to the bar": bar}, build)
    for name, (module, build, usual, tight, bar) in USES.items()
)
