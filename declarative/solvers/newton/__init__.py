"""A batched Newton method: the whole batch at once, each problem with its own steps and its own end.

Equalities are handled by Newton's method on the optimality conditions (SQP), inequalities by a primal-dual interior
point: g(u) + s = 0 with slacks s > 0 and s_i y_i = barrier -> 0. With L = f + y' c and c = [h; g] the step solves

    [ H + d D   A'    G'   ] [du  ]     [ D_U L           ]
    [ A         0     0    ] [dy_h] = - [ h               ]
    [ G         0    -S/Y  ] [dy_g]     [ g + barrier / y ]

where d >= 0 is the least regularisation (D: the size of H's diagonal) that makes the Hessian positive definite on the
directions that the equalities leave free, so that the method looks for minima. A step is accepted if a filter of
(violation, objective) says that it makes progress, after a second-order correction where that helps; where no step
along the direction is accepted, feasibility is restored by a damped Gauss-Newton method first.

Notation, in all files: the residual of the constraints is [h; g + s], the multipliers y_g of inequalities are positive,
and everything is in scaled units, in which the gradients of objective and constraints have size 1 at the start.

``start`` and ``warm_start`` say where it begins, ``iteration`` and ``filter`` what an iteration is if all goes well,
``regularisation`` and ``safeguards`` what is done where it does not, ``loop`` how a batch is brought to its end, and
``solver`` when a solution is good enough. ``compiled`` has the same iteration as machine code, file by file under the
same names; the constants of both are in ``parameters``.
"""

from .solver import Newton

__all__ = ["Newton"]
