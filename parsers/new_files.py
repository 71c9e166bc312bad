"""The frameworks for which a file is made from a model alone."""

from __future__ import annotations

from taylor.parsers.megatron import new_file as megatron
from taylor.parsers.mindformers import new_file as mindformers
from taylor.parsers.new_file import NewFile
from taylor.parsers.torchtitan import new_file as torchtitan

NEW_FILES: dict[str, NewFile] = {
    one.name: one for launcher in (megatron, mindformers, torchtitan) for one in launcher.NEW_FILES
}
"""By name; of those for the same devices the first is assumed before the others."""
