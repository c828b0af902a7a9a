"""The compiled core: the machine that runs tapes, dense and sparse KKT systems, and the loops of solvers.

It is C++ (in ``src``, a file a kernel), built when the package is installed: functions of plain buffers, which know
neither torch nor Python. ``build`` compiles it, ``library`` loads and calls it; the other modules here are the Python
side of what is described once and run often. Where there is no core, the same is done in torch, at a lower speed.
"""
