"""Answers questions by commands alone: a scripted client of `taylor mcp`, which reads no question's text."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.plan_questions.questions import Question

CONFIG = Path(__file__).resolve().parents[2] / "config"


async def ask_all(questions: Sequence[Question], folder: Path = CONFIG) -> dict[str, Any]:
    """Answers of those questions that have a command, by id; equal calls are made once."""
    from mcp import StdioServerParameters
    from mcp.client import Client
    from mcp.client.stdio import stdio_client

    words = ["-m", "taylor", "mcp", "--quiet", "--folder", str(folder)]
    server = StdioServerParameters(command=sys.executable, args=words, cwd=str(CONFIG.parent))
    documents: dict[str, Any] = {}
    answers: dict[str, Any] = {}
    async with Client(stdio_client(server)) as client:
        for one in questions:
            if one.command is None:
                continue
            key = json.dumps([one.command.tool, one.command.arguments], sort_keys=True)
            if key not in documents:
                documents[key] = (
                    await client.call_tool(one.command.tool, dict(one.command.arguments))
                ).structured_content
            answers[one.id] = one.command.answer_in(documents[key])
    return answers
