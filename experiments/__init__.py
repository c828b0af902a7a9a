"""The bundled experiments and their command line.

Each room is a folder: ``paper`` (the eight panels), ``theory`` (propositions by simulation), ``compare`` (against
independent layers), ``bench`` (speed), ``field`` (every library on the same problems), ``applications`` (sorting,
deciding, packing, control), ``approximations`` (every approximation of the gradient, at equal time), ``certificate``
(proofs of descent). All stand on ``shared``; ``report`` makes one page of what they have left;
``cli`` is the command line. Imports go from cli to report to rooms to shared.
"""
