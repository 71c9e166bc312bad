"""Writes the JSON Schemas of all documents into schemas/files/: ``python -m benchmarks.schema_files``.

With ``--release`` it also writes their shapes into `RELEASED`, with which a test compares all later ones.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from taylor.base.files import write_atomic
from taylor.schemas.registry import FILES, file_of, made_schemas

RELEASED = Path(__file__).resolve().parent.parent / "tests" / "schemas" / "released.json"
"""Shapes of the schemas of the last release."""

WORDS = ("title", "description", "$schema")
"""Keys of a schema that change no document."""


def shape(schema: Any) -> Any:
    """A schema without what only a reader sees."""
    if isinstance(schema, dict):
        # Fields may have these names too; their schemas are objects.
        return {key: shape(value) for key, value in schema.items() if key not in WORDS or isinstance(value, dict)}
    return [shape(each) for each in schema] if isinstance(schema, list) else schema


def main() -> None:
    """Write the files, and remove those of schemas that are no more."""
    made = made_schemas()
    for name, schema in made.items():
        write_atomic(file_of(name), json.dumps(schema, indent=1, ensure_ascii=False) + "\n")
    for file in set(FILES.glob("*.json")) - {file_of(name) for name in made}:
        file.unlink()
    if "--release" in sys.argv[1:]:
        shapes = {name: shape(schema) for name, schema in made.items()}
        lines = (f"{json.dumps(name)}: {json.dumps(shapes[name], sort_keys=True)}" for name in sorted(shapes))
        write_atomic(RELEASED, "{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
