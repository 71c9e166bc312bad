"""The Tab key completes commands, flags and values, as bash itself says."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from taylor.command_lines import completion
from taylor.command_lines.main import SUBCOMMANDS

TRY = r"""
source "$1"; shift
function="$(complete -p "$1" | sed 's/.*-F \([^ ]*\).*/\1/')"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
"$function" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def completed(tmp_path, capsys):
    """What bash offers for a line that ends where the Tab key is pressed."""

    def press_tab(*line):
        completion.run(["bash", line[0]])
        script = tmp_path / "completion.bash"
        script.write_text(capsys.readouterr().out)
        done = subprocess.run(["bash", "-c", TRY, "bash", script, *line], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return set(done.stdout.split())

    return press_tab


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_flags_and_values(completed):
    assert completed("taylor", "") >= {name.partition(" ")[0] for name in SUBCOMMANDS}
    assert completed("taylor", "so") == {"solve"}
    assert completed("taylor", "solve", "-sched") == {"-schedule"}
    assert completed("taylor", "solve", "-schedule", "zero") == {"zero_bubble_v"}
    assert completed("taylor", "search", "--dryrun_backend", "t") == {"torch"}
    assert "--world_size" in completed("parallel-tool", "--wo")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_registered_names(completed):
    assert completed("taylor", "solve", "--model", "llama3-7") == {"llama3-70b"}
    assert completed("pipeline-tool", "--device", "h200") == {"h200-141g"}
    assert completed("taylor", "models", "kimi-l") == {"kimi-linear-48b-a3b"}
    assert completed("taylor", "search", "--disable_rule", "tp-w") == {"tp-within-node"}


@pytest.mark.parametrize("shell", completion.SHELLS)
@pytest.mark.parametrize("command", ["taylor", *completion.SCRIPTS])
def test_every_shell_gets_a_script_for_every_command(shell, command, capsys):
    completion.run([shell, command])
    assert command in capsys.readouterr().out
