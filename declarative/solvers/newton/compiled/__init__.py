"""The iteration of the Newton method in the compiled core, in double precision on the CPU.

``arrays`` says what the core works on, and ``batch`` is the way there. What it does stands in ``kernels/src``:
``newton_iteration.hpp``, ``newton_filter.hpp``, ``newton_regularisation.hpp`` and ``newton_loop.hpp`` do what the files
of these names do in torch, and ``newton_steps.hpp`` solves the linear systems.
"""
