"""Systems of the active constraints of small dense problems in the core: what ``dense_layout.py`` says in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from .library import as_buffer, call, threads

LARGEST = 128  # unknowns: beyond that, LAPACK's factorisations are faster


def solve_all_active(
    hessian: Tensor,  # (batch, m, m)
    jacobian: Tensor,  # (batch, k, m)
    active: Tensor,  # (batch, k)
    r: Tensor,  # (batch, m)
    t: Tensor,  # (batch, k)
) -> tuple[Tensor, Tensor]:
    """The solutions (batch, m + k) of the systems of a batch, zero where not to be trusted, and whether they are."""
    (batch, m), k = r.shape, t.shape[1]
    x = [as_buffer(hessian), as_buffer(jacobian), as_buffer(active, torch.bool), as_buffer(r), as_buffer(t)]
    found = torch.empty(batch, m + k, dtype=torch.float64, device="cpu")
    trusted = torch.empty(batch, dtype=torch.bool, device="cpu")
    addresses = [one.data_ptr() for one in (*x, found, trusted)]
    call("dense_solve_active", batch, m, k, *addresses, threads())
    return found, trusted
