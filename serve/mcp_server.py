"""MCP server on standard input and output: Taylor's questions as tools for agents."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

import taylor
from taylor.base.documents import ERROR, RESULT, error_data
from taylor.base.errors import InputError
from taylor.base.near import did_you_mean
from taylor.schemas.registry import shipped
from taylor.schemas.request import BY_COMMAND
from taylor.schemas.writing import checked_text
from taylor.serve.agent_questions import AgentQuestions

INSTRUCTIONS = """Plans the parallel training of large language models: which strategy, does it fit, how fast, why not.
Ask solve for a plan (a model with device and world_size, or a training file), evaluate for the figures of a plan as it
stands, search for the legal strategies, size for how many devices a training takes, explain for the memory of a file's
plan, support for what can be read and written, compare for two results of this session (files.compare of an answer
names it). Read `verdict` first: fit, probability, cure, ties. Figures are estimates unless a measurement was given;
`assumed` and `verdict.software` list what no input states. An error is data too: do what its `cure` says."""

MOST_LINE_BYTES = 1 << 20
"""Longest message of a client."""


@dataclass(frozen=True)
class Question:
    """A tool.

    Parameters
    ----------
    command : str
        Command of its requests.
    answers : tuple of str
        Schemas of its answers.
    """

    command: str
    answers: tuple[str, ...]


TOOLS = {
    "solve": Question("solve", (RESULT,)),
    "evaluate": Question("evaluate", (RESULT,)),
    "search": Question("search", ("taylor.search/1", "taylor.explanation/1")),
    "size": Question("size", ("taylor.size/1",)),
    "explain": Question("why-memory", ("taylor.reasons/1",)),
    "support": Question("support", ("taylor.support/1",)),
    "compare": Question("compare", ("taylor.comparison/1",)),
}


def input_schema(command: str) -> dict[str, Any]:
    """Schema of a tool's arguments: the request without the keys that name it."""
    schema = BY_COMMAND[command].model_json_schema(by_alias=True)
    kept = {name: each for name, each in schema["properties"].items() if name not in ("schema", "command")}
    return {**schema, "properties": kept}


def output_schema(answers: tuple[str, ...]) -> dict[str, Any]:
    """Schema of a tool's answers: any of several, with their definitions in one place."""
    if len(answers) == 1:
        return dict(shipped(answers[0]))
    each = [shipped(name) for name in answers]
    apart = ("$schema", "$id", "$defs")
    return {
        "type": "object",
        "anyOf": [{key: part for key, part in one.items() if key not in apart} for one in each],
        "$defs": {name: part for one in each for name, part in one.get("$defs", {}).items()},
    }


def tools() -> list[types.Tool]:
    """All tools with their schemas."""
    return [
        types.Tool(
            name=name,
            description=BY_COMMAND[one.command].__doc__,
            input_schema=input_schema(one.command),
            output_schema=output_schema(one.answers),
            annotations=types.ToolAnnotations(destructive_hint=False, open_world_hint=False),
        )
        for name, one in TOOLS.items()
    ]


def server_of(questions: AgentQuestions) -> Server[Any]:
    """Server that answers the questions of one session."""
    listed = tools()

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name not in TOOLS:
            cure = did_you_mean(params.name[:100], TOOLS)
            return result_of({"schema": ERROR, **InputError("is no tool", field="name", cure=cure).to_dict()})
        try:
            return result_of(await questions.answer(TOOLS[params.name].command, params.arguments or {}))
        except Exception as error:  # a fault of ours must not end the session
            return result_of({"schema": ERROR, **error_data(error)})

    return Server(
        "taylor",
        version=taylor.__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def result_of(document: dict[str, Any]) -> types.CallToolResult:
    """Answer of a tool: the document as data, and as text for agents that read no other."""
    schema = str(document["schema"])
    text = checked_text(schema, document, ascii_only=False)
    return types.CallToolResult(
        content=[types.TextContent(text=text)], structured_content=json.loads(text), is_error=schema == ERROR
    )


class BoundedLines:
    """Lines of a binary stream, as `stdio_server` reads them; one that is too long becomes one that is no message."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        line = await anyio.to_thread.run_sync(self._line, abandon_on_cancel=True)
        if not line:
            raise StopAsyncIteration
        return line

    def _line(self) -> str:
        data = self._stream.readline(MOST_LINE_BYTES + 1)
        if len(data) <= MOST_LINE_BYTES:
            return data.decode("utf-8", "replace")
        while data and not data.endswith(b"\n"):
            data = self._stream.readline(MOST_LINE_BYTES)
        return "the message is too long\n"


async def serve(questions: AgentQuestions) -> None:
    """Serve until the client closes standard input."""
    server = server_of(questions)
    lines = cast("Any", BoundedLines(sys.stdin.buffer))
    async with stdio_server(stdin=lines) as (read, write):
        await server.run(read, write, server.create_initialization_options())


def run(questions: AgentQuestions) -> None:
    """Serve in an event loop of its own."""
    anyio.run(serve, questions)
