"""Which folders of the checkout are installed: every package at its top, below the one import name `taylor`."""

from pathlib import Path

from setuptools import find_packages, setup

STAY_HERE = ("taylor", "tests", "benchmarks")
FOLDERS = sorted({file.parent.name for file in Path().glob("*/__init__.py")} - set(STAY_HERE))

setup(
    packages=[
        *find_packages(include=["taylor", "taylor.*"]),
        *(f"taylor.{package}" for name in FOLDERS for package in find_packages(include=[name, f"{name}.*"])),
        "taylor.config",
    ],
    package_dir={f"taylor.{name}": name for name in (*FOLDERS, "config")},
)
