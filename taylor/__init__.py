"""Taylor: parallel-training strategies of large language models, searched, solved, proven, ranked."""

from pathlib import Path

__version__ = "0.1.0"

_CHECKOUT = Path(__file__).resolve().parent.parent
if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "pipeline_solver" / "__init__.py").is_file():
    # In a checkout the sub-packages lie beside this folder; installed, they lie in it.
    __path__.append(str(_CHECKOUT))
