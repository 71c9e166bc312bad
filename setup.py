"""Which folders of the checkout are installed: every package at its top, below the one import name `taylor`."""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

STAY_HERE = ("taylor", "tests", "benchmarks")
FOLDERS = sorted({file.parent.name for file in Path().glob("*/__init__.py")} - set(STAY_HERE))


class BuildAnew(build_py):
    """Copies the packages into an empty folder: what an earlier build left there would go into the wheel."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(
    cmdclass={"build_py": BuildAnew},
    packages=[
        *find_packages(include=["taylor", "taylor.*"]),
        *(f"taylor.{package}" for name in FOLDERS for package in find_packages(include=[name, f"{name}.*"])),
        "taylor.config",
    ],
    package_dir={f"taylor.{name}": name for name in (*FOLDERS, "config")},
)
