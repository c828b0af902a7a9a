"""Numbers of several problems side by side as one value of a kernel, which the processor works on at once.

An array (entries, lanes) holds a number of each problem in every row. ``load`` takes a row of it and ``store`` puts one
there; in between, rows are added and multiplied like numbers, and of one lane they are numbers. How many lanes there
are has to be known when a kernel is compiled.
"""

from __future__ import annotations

import importlib
import operator
from typing import Any

from .jit import INSTALLED, numba

LANES = 8  # problems side by side: two registers of the processor for each number

if INSTALLED:
    ir: Any = importlib.import_module("llvmlite.ir")  # without types, as Numba is
    types: Any = numba.types
    cgutils: Any = importlib.import_module("numba.core.cgutils")
    extending: Any = importlib.import_module("numba.extending")

    class Vector(types.Type):  # type: ignore[misc]
        """A number of each of so many problems."""

        def __init__(self, lanes: int) -> None:
            self.lanes = lanes
            super().__init__(name=f"Vector({lanes})")

    @extending.register_model(Vector)
    class _VectorModel(extending.models.PrimitiveModel):  # type: ignore[misc]
        def __init__(self, manager: Any, kind: Vector) -> None:
            super().__init__(manager, kind, ir.VectorType(ir.DoubleType(), kind.lanes))

    def _known(lanes: Any) -> bool:
        return isinstance(lanes, types.IntegerLiteral)

    def _of(lanes: Any) -> Any:
        return types.float64 if lanes.literal_value == 1 else Vector(lanes.literal_value)

    def _address(context: Any, builder: Any, kind: Any, array: Any, row: Any, lanes: int) -> Any:
        data = cgutils.create_struct_proxy(kind)(context, builder, value=array).data
        first = builder.gep(data, [builder.mul(row, ir.Constant(row.type, lanes))])
        return first if lanes == 1 else builder.bitcast(first, ir.VectorType(ir.DoubleType(), lanes).as_pointer())

    @extending.intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
    def load(_: Any, array: Any, row: Any, lanes: Any) -> Any:  # noqa: ARG001
        """A row of an array."""
        if not _known(lanes):
            return None

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            found = builder.load(_address(context, builder, signature.args[0], args[0], args[1], lanes.literal_value))
            found.align = 8
            return found

        return _of(lanes)(array, types.intp, lanes), generate

    @extending.intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
    def store(_: Any, array: Any, row: Any, value: Any, lanes: Any) -> Any:  # noqa: ARG001
        """Put it there."""
        if not _known(lanes):
            return None

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = _address(context, builder, signature.args[0], args[0], args[1], lanes.literal_value)
            builder.store(args[2], place).align = 8
            return context.get_dummy_value()

        return types.void(array, types.intp, _of(lanes), lanes), generate

    @extending.intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
    def broadcast(_: Any, value: Any, lanes: Any) -> Any:  # noqa: ARG001
        """The same number in all lanes."""
        if not _known(lanes):
            return None

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            count = lanes.literal_value
            found = args[0] if count == 1 else ir.Constant(ir.VectorType(ir.DoubleType(), count), ir.Undefined)
            for lane in range(count if count > 1 else 0):
                found = builder.insert_element(found, args[0], ir.Constant(ir.IntType(32), lane))
            return found

        return _of(lanes)(types.float64, lanes), generate

    @extending.intrinsic  # type: ignore[untyped-decorator]
    def where_less(_: Any, a: Any, b: Any, x: Any, y: Any) -> Any:
        """x where a < b, and y elsewhere, also where one of them is not a number."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            return builder.select(builder.fcmp_ordered("<", args[0], args[1]), args[2], args[3])

        return x(a, b, x, y), generate

    @extending.intrinsic  # type: ignore[untyped-decorator]
    def all_less(_: Any, a: Any, b: Any) -> Any:
        """Whether a < b in all lanes."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            less = builder.fcmp_ordered("<", *args)
            if signature.args[0] is types.float64:
                return less
            bits = ir.IntType(signature.args[0].lanes)
            return builder.icmp_signed("==", builder.bitcast(less, bits), ir.Constant(bits, -1))

        return types.boolean(a, b), generate

    @extending.intrinsic  # type: ignore[untyped-decorator]
    def absolute(_: Any, a: Any) -> Any:
        """|a|."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            kind = args[0].type
            name = "llvm.fabs.f64" if signature.args[0] is types.float64 else f"llvm.fabs.v{kind.count}f64"
            return builder.call(
                cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind]), name), args
            )

        return a(a), generate

    def _operation(symbol: Any, name: str) -> None:
        @extending.intrinsic  # type: ignore[untyped-decorator]
        def carry_out(_: Any, a: Any, b: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
                return getattr(builder, name)(*args, flags=("contract",))

            return a(a, b), generate

        @extending.overload(symbol, inline="always")
        def of_vectors(a, b):  # type: ignore[no-untyped-def] # both signatures have to be alike
            return (lambda a, b: carry_out(a, b)) if isinstance(a, Vector) and a == b else None

    for _symbol, _name in (
        (operator.add, "fadd"),
        (operator.sub, "fsub"),
        (operator.mul, "fmul"),
        (operator.truediv, "fdiv"),
    ):
        _operation(_symbol, _name)
else:  # without Numba no kernel that needs them is called
    load = store = broadcast = where_less = all_less = absolute = None
