"""The kinds of instructions of a tape, in the order of ``src/tape.hpp``, which says what each computes."""

(
    ADD, SUB, MUL, DIV, NEG, MAXIMUM, MINIMUM, POW, ATAN2, WHERE,
    LT, LE, EQ, NOT, AND, OR, ISFINITE, ISNAN,
    ABS, SIGN, SQRT, EXP, EXPM1, LOG, LOG1P, SIN, COS, TAN, ASIN, ACOS, ATAN,
    SINH, COSH, TANH, ASINH, ACOSH, ATANH, ERF, FLOOR, CEIL, READ, SOLVED,
) = range(42)  # fmt: skip
