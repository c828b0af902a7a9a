"""What is private in Numba: only this file touches it. How kernels are compiled, kept on disk, and call each other."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from .file_lock import one_process

codegen: Any = importlib.import_module("numba.core.codegen")  # without types, as all of Numba
locks: Any = importlib.import_module("numba.core.compiler_lock")
compiler: Any = importlib.import_module("numba.core.compiler")
cgutils: Any = importlib.import_module("numba.core.cgutils")
extending: Any = importlib.import_module("numba.extending")
numba: Any = importlib.import_module("numba")
types: Any = numba.types
binding: Any = importlib.import_module("llvmlite.binding")


def keep(kernel: Any, stamp: str) -> None:
    """What is on disk of a kernel has this stamp too, and is made, or read, by one process at a time."""
    kept = kernel._cache._cache_file
    kept._source_stamp = (kept._source_stamp, stamp)
    load = kept._load_index

    def load_index() -> Any:
        try:
            return load()
        except (ImportError, AttributeError):  # of other sources, whose modules or classes are not there any more
            return {}

    kept._load_index = load_index
    path = Path(kernel._cache.cache_path) / f"{kernel.py_func.__module__}.{kernel.py_func.__qualname__}.lock"
    usual = kernel.compile

    def compile_or_read(signature: Any) -> Any:
        with locks.global_compiler_lock, one_process(path):  # first the threads, so that none waits for another's file
            return usual(signature)

    kernel.compile = compile_or_read


class Part(codegen.JITCodeLibrary):  # type: ignore[misc]
    """A function for other libraries to link in, of which there is no machine code.

    By default Numba makes that of every function, and optimises it before and after it becomes part of others: most of
    the time was spent on what nobody calls.
    """

    def _optimize_final_module(self) -> None:
        """Left to those that it becomes part of."""

    def _finalize_final_module(self) -> None:
        """The functions stay as they are. Variables of Numba's, to which it wants to write, get their places."""
        self._finalize_dynamic_globals()
        variables = [str(x) for x in self._final_module.global_variables if x.name.startswith("_ZN08NumbaEnv")]
        module = binding.parse_assembly("\n".join(variables))
        module.triple, module.data_layout = self._final_module.triple, self._final_module.data_layout
        self._codegen._add_module(module)
        self._codegen._engine.finalize_object()
        self._finalized = True


class PartCompiler(compiler.Compiler):  # type: ignore[misc]
    """Numba's own, but for what becomes of the code."""

    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any) -> None:
        super().__init__(typing, target, library or Part(target.codegen(), "part"), *rest)


def call_of(examples: Any) -> Any:
    """``call(address, (argument, ...))`` for kernels with arguments of the types of these examples."""

    @extending.intrinsic  # type: ignore[untyped-decorator]
    def call(_: Any, address: Any, arguments: Any) -> Any:
        wanted = tuple(numba.typeof(x) for x in examples())
        given = tuple(types.unliteral(x) for x in arguments.types)
        if given != wanted or address is not types.int64:
            raise numba.TypingError(f"a kernel of {wanted} is called with {given}")

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            convention = context.call_conv
            kind = convention.get_function_type(types.none, wanted)
            place = builder.inttoptr(args[0], kind.as_pointer())
            parts = [
                context.cast(builder, builder.extract_value(args[1], i), one, other)
                for i, (one, other) in enumerate(zip(signature.args[1].types, wanted, strict=True))
            ]
            status, _ = convention.call_function(builder, place, types.none, wanted, parts)
            with cgutils.if_unlikely(builder, status.is_error):
                convention.return_status_propagate(builder, status)
            return context.get_dummy_value()

        return types.void(address, arguments), generate

    return call
