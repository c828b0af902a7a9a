"""The field's benchmark: every library of optimisation layers on the same problems, with failures counted."""
