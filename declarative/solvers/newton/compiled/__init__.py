"""The iteration of the Newton method as machine code, in double precision on the CPU, if Numba is installed.

``arrays`` says what kernels work on; ``iteration``, ``regularisation`` and ``loop`` do what the files of these names do
in torch, ``steps`` solves the linear systems, and ``batch`` is the way in from Python. Comparisons are written such
that what is not a number is never good.
"""
