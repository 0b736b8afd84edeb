"""Compiles shared/fedfa/kernel.c where there is a C compiler; without one numpy does its work.

A build hook of hatchling. `python hatch_build.py` does the same in a checkout that pip did not
install.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent / "shared/fedfa/kernel.c"
# No -ffast-math and no contraction: the results must have the bits that numpy gives.
FLAGS = ["-std=c11", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-pthread", "-Wall"]


def compile_kernel(target: Path) -> bool:
    """Write the shared library; False where there is no C compiler. Raises CalledProcessError."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        return False
    partial = target.with_suffix(f".{os.getpid()}")  # a running process may have the old one open
    subprocess.run([*compiler, *FLAGS, str(SOURCE), "-o", str(partial)], check=True)
    partial.replace(target)
    return True


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # run by hand
    pass
else:

    class KernelHook(BuildHookInterface[Any]):
        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            library = SOURCE.with_name("_kernel.so")
            if not compile_kernel(library):
                self.app.display_warning("no C compiler (cc): models will be merged with numpy")
                return
            build_data["pure_python"] = False
            build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(
                ".", "_"
            )
            build_data["artifacts"].append("shared/fedfa/_kernel.so")


if __name__ == "__main__":
    sys.exit(0 if compile_kernel(SOURCE.with_name("_kernel.so")) else "no C compiler (cc)")
