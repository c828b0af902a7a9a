"""Building the package builds its compiled core; without a C++ compiler the rest is installed, and says so."""

import importlib.util
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
KERNELS = Path("declarative") / "kernels"
specification = importlib.util.spec_from_file_location("build_of_kernels", HERE / KERNELS / "build.py")
kernels = importlib.util.module_from_spec(specification)
specification.loader.exec_module(kernels)


class BuildWithCore(build_py):
    """In a wheel for every set of instructions; a checkout that is installed as it lies gets what its machine needs."""

    def run(self) -> None:
        super().run()
        try:
            if self.editable_mode:
                kernels.build_for_this_machine()
            else:
                kernels.build(Path(self.build_lib) / KERNELS / "lib")
        except kernels.NotBuilt as error:
            sys.stderr.write(f"warning: the compiled core is left out, all will be slower: {error}\n")


class WheelOfPlatform(bdist_wheel):
    """One wheel for every Python: the core knows none of them, but it knows the processor and the system."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class WithCore(Distribution):
    """What is built differs from platform to platform."""

    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildWithCore, "bdist_wheel": WheelOfPlatform}, distclass=WithCore)
