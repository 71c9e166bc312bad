"""Client that knows nothing but the schemas that `taylor schema` prints: it builds requests and checks answers by them.

It is run as a script and imports nothing of Taylor: ``python outside_client.py PYTHON CONFIG FOLDER``.
"""

import json
import subprocess
import sys

import jsonschema

PYTHON, CONFIG, FOLDER = sys.argv[1:]


def run(*words, request=None):
    """Document on standard output of a command."""
    done = subprocess.run(
        [PYTHON, "-m", "taylor", *words], input=request, capture_output=True, text=True, cwd=FOLDER, timeout=300
    )
    return json.loads(done.stdout)


def schema(name):
    """JSON Schema of a document."""
    return run("schema", name)


def checked(document):
    """The document, once it is valid under the schema that it names."""
    jsonschema.validate(document, schema(document["schema"]))
    return document


def ask(command, subcommand, **fields):
    """Answer to a request that the schema of requests allows."""
    requests = schema("request")
    of_command = {
        name: each for name, each in requests["$defs"].items()
        if each.get("properties", {}).get("command", {}).get("const") == command
    }  # fmt: skip
    [(name, described)] = of_command.items()
    unknown = set(fields) - set(described["properties"])
    assert not unknown, unknown
    request = {"schema": described["properties"]["schema"]["const"], "command": command, **fields}
    jsonschema.validate(request, requests)
    return checked(run(subcommand, "--json", "--quiet", "--config", "-", request=json.dumps(request)))


searched = ask("search", "search", file=CONFIG, profile_num=3)
assert searched["candidates"] and searched["verdict"]["fit"] == "fits"
before = ask("evaluate", "solve", file=CONFIG, result_json=f"{FOLDER}/before.json")
after = ask("solve", "solve", file=CONFIG, o=f"{FOLDER}/after.yaml", result_json=f"{FOLDER}/after.json", time_limit=20)
assert after["step_ms"] <= before["step_ms"] * (1 + 1e-6) and after["status"] in ("optimal", "feasible")
compared = ask("compare", "compare", first=f"{FOLDER}/before.json", second=f"{FOLDER}/after.json")
assert compared["parts"] and compared["exceeds_error"] in (True, False)
refused = ask("solve", "solve", file=f"{FOLDER}/absent.yaml")
assert refused["code"] == "bad_input" and refused["cure"]
print(json.dumps([searched["schema"], before["schema"], after["schema"], compared["schema"], refused["schema"]]))
