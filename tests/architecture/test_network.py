"""Nothing leaves the machine: modules that could open a connection are few, and SECURITY.md names what they are for."""

from __future__ import annotations

import ast

from tests.conftest import ROOT
from tests.packaging import hostile

CLIENTS = {
    "aiohttp", "asyncio", "boto3", "dask", "dask_jobqueue", "dask_kubernetes", "distributed", "ftplib", "httpx",
    "httpcore", "http", "huggingface_hub", "imaplib", "mcp", "nntplib", "paramiko", "poplib", "psycopg", "requests",
    "smtplib", "socket", "socketserver", "ssl", "starlette", "telnetlib", "urllib3", "uvicorn", "websockets", "xmlrpc",
}  # fmt: skip
"""Modules with which a program talks to others."""

ALLOWED = {
    "base/database.py": "--store postgresql://…",
    "serve/": "`taylor serve`",
    "taylor/command_lines/serve.py": "`taylor serve`",
    "taylor/command_lines/mcp.py": "`taylor mcp`, on standard input and output",
    "workflows/measuring/profile_hardware.py": "`taylor profile hardware`",
    "workflows/running/cluster.py": "--cluster",
    "workflows/running/cluster_jobs.py": "--cluster",
}
"""Files that may import one, and by what a user asks for it."""

PROGRAMS = ("curl", "wget", "ssh", "scp", "rsync", "git clone", "pip install")


def imported(path):
    """Dotted names of all imports of a file, deferred ones included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def sources():
    for name in sorted(hostile.own_names(ROOT) - {"tests", "benchmarks"}):
        yield from sorted((ROOT / name).rglob("*.py"))


def test_no_module_imports_a_network_client_but_those_that_a_user_asks_for():
    strays = []
    for path in sources():
        place = path.relative_to(ROOT).as_posix()
        if any(place.startswith(allowed) for allowed in ALLOWED):
            continue
        for name in imported(path):
            if name.partition(".")[0] in CLIENTS or name.startswith(
                ("urllib.request", "multiprocessing.connection.Client")
            ):
                strays.append(f"{place} imports {name}")
    assert strays == []


def test_no_module_starts_a_program_that_fetches():
    strays = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("subprocess.", "os.system"))):
                continue
            words = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
            strays += [f"{path}: {word}" for word in words if word in PROGRAMS]
    assert strays == []


def test_the_statement_names_each_way_out():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "Nothing leaves the machine" in text
    for way in ("taylor serve", "--cluster", "postgresql://", "taylor profile hardware"):
        assert way in text
