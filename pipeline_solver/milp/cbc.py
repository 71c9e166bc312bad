"""Path of CBC: in the package `cbcbox`, with PuLP below version 4, or on the search path."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path


def cbc_path() -> str | None:
    """The CBC program to run; None where there is none.

    PuLP ships one up to version 3, at `pulp_cbc_path`; ``pip install 'pulp[cbc]'`` brings the package `cbcbox`,
    which is where PuLP 4 looks. Neither needs PuLP's class ``PULP_CBC_CMD``, which version 4 no longer has.
    """
    if importlib.util.find_spec("cbcbox") is not None:
        import cbcbox

        return str(cbcbox.cbc_bin_path())
    try:
        from pulp.apis.coin_api import pulp_cbc_path
    except ImportError:
        return shutil.which("cbc")
    shipped = Path(pulp_cbc_path + (".exe" if os.name == "nt" else ""))
    if not shipped.is_file():
        return shutil.which("cbc")
    if not os.access(shipped, os.X_OK):  # a wheel unpacked without its modes
        shipped.chmod(shipped.stat().st_mode | 0o111)
    return str(shipped)
