"""`taylor mcp`: agents get documents, bounded, and nothing is read or written outside the folders given."""

from __future__ import annotations

import io
import json
import shutil
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client

from taylor.base.errors import InputError
from taylor.command_lines import mcp as command
from taylor.parsers.read import read_config
from taylor.serve import mcp_server
from taylor.serve.agent_paths import AgentPaths
from taylor.serve.agent_questions import AgentQuestions
from taylor.serve.mcp_server import TOOLS, tools
from tests.conftest import ROOT
from tests.schemas.documents import check, validator

CONFIG = ROOT / "config"
SCRIPT = "pretrain_llama3_70b.sh"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder with one training file, beside a secret."""
    inside = tmp_path / "inside"
    inside.mkdir()
    shutil.copy(CONFIG / SCRIPT, inside)
    (tmp_path / "secret.sh").write_text((CONFIG / SCRIPT).read_text(encoding="utf-8"), encoding="utf-8")
    (inside / "link.sh").symlink_to(tmp_path / "secret.sh")
    return inside


@asynccontextmanager
async def connected(*words: str):
    """Client of a server that runs as its own process."""
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "taylor", "mcp", "--quiet", *words], cwd=str(ROOT)
    )
    async with Client(stdio_client(server)) as client:
        yield client


async def asked(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    """Document of a tool, valid under its schema."""
    answer = await client.call_tool(name, arguments)
    document = check(answer.structured_content)
    assert answer.is_error == (document["schema"] == "taylor.error/1")
    assert json.loads(answer.content[0].text) == document
    return document


def test_every_tool_has_the_schemas_of_its_request_and_its_answer():
    assert {tool.name for tool in tools()} == set(TOOLS)
    for tool in tools():
        assert set(tool.input_schema["properties"]) and "schema" not in tool.input_schema["properties"]
        assert tool.description and tool.output_schema["type"] == "object"
        for name in TOOLS[tool.name].answers:
            own = validator(name).schema
            parts = [tool.output_schema, *tool.output_schema.get("anyOf", ())]
            assert own["properties"] in [part.get("properties") for part in parts]
            assert own.get("$defs", {}).items() <= tool.output_schema.get("$defs", {}).items()


@pytest.mark.slow
def test_an_agent_evaluates_solves_compares_and_explains(folder, tmp_path):
    async def talk() -> None:
        async with connected("--folder", str(folder), "--output", str(tmp_path / "out")) as client:
            first = await asked(client, "evaluate", file=SCRIPT)
            second = await asked(client, "solve", file=SCRIPT, time_limit=20, o="solved.sh")
            names = first["files"]["compare"], second["files"]["compare"]
            compared = await asked(client, "compare", first=names[0], second=names[1])
            assert compared["schema"] == "taylor.comparison/1" and compared["parts"]
            assert second["step_ms"] <= first["step_ms"] and "problem" not in second
            assert second["verdict"]["baseline"]["gain"] == pytest.approx(first["step_ms"] / second["step_ms"] - 1)
            reasons = await asked(client, "explain", file=SCRIPT, stage=0)
            assert reasons["stages"][0]["peak_mib"] == pytest.approx(first["peak_memory"][0], abs=0.01)
            wrong = await asked(client, "compare", first="r99", second=names[0])
            assert "r1, r2" in wrong["cure"]

    anyio.run(talk)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["solved.sh"]
    assert sorted(path.name for path in folder.iterdir()) == ["link.sh", SCRIPT]
    assert (folder / SCRIPT).read_bytes() == (CONFIG / SCRIPT).read_bytes()


@pytest.mark.slow
def test_an_agent_searches_a_model_and_gets_a_refusal_with_its_cure(folder):
    async def talk() -> None:
        async with connected("--folder", str(folder)) as client:
            found = await asked(client, "search", model="llama3-8b", device="h100-80g", world_size=8, profile_num=3)
            assert found["candidates"] and found["verdict"]["fit"] == "fits" and found["world_size"] == 8
            assert not found["files"], "they are gone with the process"
            why = await asked(
                client, "search", model="llama3-8b", device="h100-80g", world_size=8, explain="DP2_TP2_PP2"
            )
            assert why["schema"] == "taylor.explanation/1" and why["reasons"] and len(why["stages"]) == 2
            broken = await asked(client, "evaluate", model="llama3-8b", device="h100-80g", world_size=6, fix={"tp": 4})
            assert broken["code"] in ("bad_input", "illegal", "infeasible") and broken["message"]
            typo = await asked(client, "search", model="lama3-8b", device="h100-80g", world_size=8)
            assert "llama3-8b" in typo["cure"]
            refused = await asked(client, "solve", file=SCRIPT, o="plan.sh")
            assert "--output" in refused["cure"]

    anyio.run(talk)


@pytest.mark.parametrize(
    "text",
    ["../secret.sh", "link.sh", "/etc/passwd", "no.sh", "a\x00b", "../inside/../secret.sh", "x" * 5000],
    ids=len,
)
def test_a_file_outside_the_folders_is_none(folder, text):
    with pytest.raises(InputError, match="no file in the folders"):
        AgentPaths((folder,)).readable(text, "file")


@pytest.mark.parametrize("text", ["../plan.sh", "/tmp/plan.sh", ".", "sub/../../plan.sh", "x/" * 3000 + "y"], ids=len)
def test_an_output_outside_its_folder_is_refused(folder, tmp_path, text):
    with pytest.raises(InputError, match="outside the output folder"):
        AgentPaths((folder,), tmp_path / "out").writable(text, "o")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "earlier.sh").write_text("plan")
    with pytest.raises(InputError, match="there already"):
        AgentPaths((folder,), tmp_path / "out").writable("earlier.sh", "o")
    with pytest.raises(InputError, match="read-only"):
        AgentPaths((folder,)).writable("plan.sh", "o")


def test_names_of_models_and_devices_that_are_paths_are_looked_up_in_the_folders(folder):
    paths = AgentPaths((folder,))
    elsewhere = {"model": "../m.json", "model_as": "/m", "device": "/etc/d.yaml", "stage_devices": "/a:1"}
    for field, text in elsewhere.items():
        with pytest.raises(InputError) as refused:
            paths.settled({field: text})
        assert refused.value.field == field
    assert paths.settled({"model": "llama3-8b", "device": "h100"}) == {"model": "llama3-8b", "device": "h100"}


def test_a_question_that_takes_too_long_is_refused_in_words(folder, tmp_path, monkeypatch):
    from taylor.serve import agent_questions

    monkeypatch.setattr(agent_questions, "MARGIN_SECONDS", 0.01)
    questions = AgentQuestions(AgentPaths((folder,)), tmp_path, seconds=0.01)
    found = anyio.run(questions.answer, "solve", {"file": SCRIPT})
    assert check(found)["code"] == "too_much" and "was ended" in found["message"] and found["cure"]
    assert not list(tmp_path.glob("question-*"))


@pytest.mark.parametrize("stated, each", [({"time_limit": 30, "profile_num": 5}, 6.0), ({}, 3.0)])
def test_the_solves_of_a_search_share_the_time_of_the_question(folder, tmp_path, monkeypatch, stated, each):
    from taylor.serve import agent_questions

    asked_with: list[dict[str, Any]] = []

    async def talk(process: Any, question: bytes) -> bytes:
        asked_with.append(json.loads(question))
        return b"{}"

    monkeypatch.setattr(agent_questions, "_talk", talk)
    questions = AgentQuestions(AgentPaths((folder,)), tmp_path, seconds=60.0)
    anyio.run(questions.answer, "search", {"file": SCRIPT, "full": True, **stated})
    anyio.run(questions.answer, "search", {"file": SCRIPT, **stated})
    assert asked_with[0]["time_limit"] == each and "time_limit" not in asked_with[1]


def test_a_question_that_needs_too_much_memory_is_refused_in_words(folder, tmp_path):
    questions = AgentQuestions(AgentPaths((folder,)), tmp_path, bytes_each=60 << 20)
    found = anyio.run(questions.answer, "evaluate", {"file": SCRIPT})
    assert check(found)["code"] == "too_much" and found["message"]


def test_an_answer_that_is_too_long_is_refused_as_such(folder, tmp_path, monkeypatch):
    from taylor.serve import agent_questions

    monkeypatch.setattr(agent_questions, "MOST_ANSWER_BYTES", 100)
    found = anyio.run(AgentQuestions(AgentPaths((folder,)), tmp_path).answer, "support", {})
    assert check(found)["code"] == "too_much" and "has an answer of more" in found["message"]


def test_a_flood_of_questions_is_refused_beyond_those_that_may_wait(folder, tmp_path):
    questions = AgentQuestions(AgentPaths((folder,)), tmp_path, waiting=100)
    found = anyio.run(questions.answer, "support", {})
    assert check(found)["code"] == "too_much" and "wait already" in found["message"]
    assert anyio.run(questions.answer, "support", {"feature": ["x" * 299] * 400})["code"] == "too_much"


def test_a_space_in_a_path_is_refused_as_such(folder, tmp_path):
    (folder / "my run.sh").write_text("x", encoding="utf-8")
    with pytest.raises(InputError, match="has a space"):
        AgentPaths((folder,)).readable("my run.sh", "file")
    (tmp_path / "my folder").mkdir()
    with pytest.raises(InputError, match="--folder: has a space"):
        command.run(["--folder", str(tmp_path / "my folder")])


def test_a_script_is_read_with_the_arguments_and_the_variables_of_the_question(folder, tmp_path):
    text = (folder / SCRIPT).read_text().replace("TP=8\n", "TP=$1\n").replace("PP=", "PP=${OWN_PP:-1} #", 1)
    (folder / "started.sh").write_text(text)
    questions = AgentQuestions(AgentPaths((folder,)), tmp_path / "work")
    (tmp_path / "work").mkdir()
    asked = {"file": "started.sh 4", "env": {"OWN_PP": "8"}}
    found = anyio.run(questions.answer, "evaluate", asked)
    assert (found["strategy"]["tp"], found["strategy"]["pp"]) == (4, 8)
    elsewhere = anyio.run(questions.answer, "evaluate", {**asked, "file": "../started.sh 4"})
    assert elsewhere["field"] == "file" and "no file in the folders" in elsewhere["message"]
    wrong = anyio.run(questions.answer, "evaluate", {**asked, "env": {"OWN PP": "8"}})
    assert "OWN PP" in wrong["message"]
    unused = anyio.run(questions.answer, "evaluate", {"model": "llama3-8b", "world_size": 8, "env": {"TP": "2"}})
    assert "belong to a file" in unused["message"]


def test_a_script_of_a_folder_takes_in_no_file_outside_it(folder, tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "secret.env").write_text("TP=4\n")
    text = (folder / SCRIPT).read_text().replace("TP=8\n", "TP=8\nsource ../secret.env\n")
    (folder / "sourcing.sh").write_text(text)
    assert read_config(folder / "sourcing.sh").strategy.tp == 4
    (tmp_path / "neox.sh").write_text(f"python deepy.py train.py {tmp_path}/secret.yml\n")
    (folder / "neox.sh").write_text((tmp_path / "neox.sh").read_text())
    (tmp_path / "secret.yml").write_text("pipe_parallel_size: 7\n")
    questions = AgentQuestions(AgentPaths((folder,)), tmp_path / "work")
    (tmp_path / "work").mkdir()
    found = anyio.run(questions.answer, "evaluate", {"file": "sourcing.sh"})
    assert found["strategy"]["tp"] == 8
    refused = anyio.run(questions.answer, "evaluate", {"file": "neox.sh"})
    assert "outside the folders that may be read" in refused["message"]


def test_the_command_refuses_a_folder_that_is_none_and_a_document():
    with pytest.raises(InputError, match="no such folder"):
        command.run(["--folder", "/absent/folder"])
    with pytest.raises(InputError, match="agent's"):
        command.run(["--json"])


def test_a_line_that_is_too_long_becomes_one_message_and_the_next_is_read(monkeypatch):
    monkeypatch.setattr(mcp_server, "MOST_LINE_BYTES", 8)
    stream = io.BytesIO(b"short\n" + b"x" * 8 + b"\n" + b"y" * 50 + b"\n" + b"next\n" + b"z" * 20)
    lines = mcp_server.BoundedLines(stream)
    long = "the message is too long\n"
    assert [lines._line() for _ in range(6)] == ["short\n", long, long, "next\n", long, ""]
