"""Which folders of the checkout are installed: every package at its top, below the one import name `taylor`."""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

STAY_HERE = ("taylor", "tests", "benchmarks")
FOLDERS = sorted({file.parent.name for file in Path().glob("*/__init__.py")} - set(STAY_HERE))

OF_CHECKOUT = '''"""The package `taylor` of a checkout."""

import sys
from importlib.util import module_from_spec, spec_from_file_location

SPEC = spec_from_file_location("taylor", {file!r})
sys.modules["taylor"] = module_from_spec(SPEC)
SPEC.loader.exec_module(sys.modules["taylor"])
'''
"""What an editable installation has in site-packages."""


class BuildAnew(build_py):
    """Copies the packages into an empty folder: what an earlier build left there would go into the wheel."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if self.editable_mode:
            # Beside setuptools' own finder, which comes after Python's: that takes any folder named `taylor`, such as a
            # clone in the working folder, for an empty package unless it finds one that is none.
            package = Path(self.get_finalized_command("install").install_lib, "taylor")
            package.mkdir(parents=True, exist_ok=True)
            package.joinpath("__init__.py").write_text(
                OF_CHECKOUT.format(file=str(Path("taylor/__init__.py").resolve()))
            )


setup(
    cmdclass={"build_py": BuildAnew},
    packages=[
        *find_packages(include=["taylor", "taylor.*"]),
        *(f"taylor.{package}" for name in FOLDERS for package in find_packages(include=[name, f"{name}.*"])),
        "taylor.config",
    ],
    package_dir={f"taylor.{name}": name for name in (*FOLDERS, "config")},
)
