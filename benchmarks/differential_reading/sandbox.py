"""Runs a launch script under bash where nothing but bash exists, and takes down every program that it would start.

The script sees a root folder of its own (bash, the libraries that bash needs, an empty working folder), no network,
no other process, no rights, and little CPU time, memory and disk. A command that is no builtin of the shell goes to
``command_not_found_handle``, which writes its arguments to a file and answers with `UNTOLD`: what a program would
have said is not in the script.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from benchmarks.differential_reading.reading import NothingToRead

UNTOLD = "TOLD_BY_A_PROGRAM"
"""Output of a program here; in shell arithmetic an unset variable, hence 0."""
_SECONDS = 10
_PREAMBLE = r"""
ulimit -t 5 -f 2048 -v 2000000 -n 256
command_not_found_handle() {
  { set +eux; } 2> /dev/null
  printf '%s\0' "$@" > "/calls/$BASHPID.$RANDOM$RANDOM"
  # The text of a shell that another program is to start is the script's too.
  local at
  for ((at = 1; at < $#; at++)); do
    case "${*:at:1}" in sh|bash|*/sh|*/bash)
      case "${*:at+1:1}" in -c|-lc|-ec|-exc) eval "${*:at+2:1}" > /dev/null; break ;; esac ;;
    esac
  done
  printf %s UNTOLD
}
cat() { if [ $# = 0 ]; then local text; IFS= read -r -d '' text || :; printf %s "$text"; else printf %s UNTOLD; fi; }
dirname() { case "$1" in */*) printf '%s\n' "${1%/*}" ;; *) printf '.\n' ;; esac; }
basename() { local name="${1##*/}"; printf '%s\n' "${name%"$2"}"; }
source() { if [ -r "$1" ]; then builtin source "$@"; fi; }
.() { if [ -r "$1" ]; then builtin source "$@"; fi; }
cd() { builtin cd "$@" 2> /dev/null || :; }
exec() { if [ $# -gt 0 ]; then "$@"; exit; fi; }
trap '' PIPE  # A stand-in that reads nothing ends none that writes to it.
trap wait EXIT
"""
_FILES_EXIST = r"""
[() {
  case "$1" in
    -[def]) return 0 ;;
    !) case "$2" in -[def]) return 1 ;; esac ;;
  esac
  builtin [ "$@"
}
"""


@cache
def _bash() -> tuple[Path, tuple[Path, ...]]:
    """bash, and the libraries that it loads."""
    bash, unshare = shutil.which("bash"), shutil.which("unshare")
    if bash is None or unshare is None:
        raise RuntimeError("reading scripts needs bash and unshare (util-linux)")
    listed = subprocess.run(["ldd", bash], capture_output=True, text=True, check=True).stdout
    return Path(bash), tuple(Path(name) for name in re.findall(r"(/\S+)", listed))


def available() -> bool:
    """Return whether this machine lets a user make such a place."""
    try:
        return launches("torchrun train.py --works") == [["torchrun", "train.py", "--works"]]
    except (RuntimeError, OSError, subprocess.SubprocessError, NothingToRead):
        return False


def launches(text: str, files_exist: bool = False) -> list[list[str]]:
    """The arguments of every program that a script starts, programs inside command substitutions too.

    Parameters
    ----------
    files_exist : bool
        ``[ -f … ]``, ``[ -d … ]`` and ``[ -e … ]`` succeed for every name.

    Raises
    ------
    NothingToRead
        When the script asks for what it is not given.
    RuntimeError
        When the place cannot be made.
    """
    if re.search(r"(?m)^\s*(enable|builtin\s+enable)\b", text):
        raise NothingToRead("loads code into the shell: not run")
    bash, libraries = _bash()
    preamble = _PREAMBLE.replace("UNTOLD", UNTOLD) + (_FILES_EXIST if files_exist else "")
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        for part in ("calls", "job", "tmp", "dev", "bin"):
            (root / part).mkdir()
            (root / part).chmod(0o777)
        for file in (bash, *libraries):
            place = root / ("bin/bash" if file == bash else str(file).lstrip("/"))
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place)
            place.chmod(0o555)
        (root / "preamble").write_text(preamble, encoding="utf-8")
        for program in ("pretrain_gpt.py", "posttrain_gpt.py"):  # As in the launchers' own folder.
            (root / "job" / program).touch()
        (root / "job" / "launch.sh").write_text(text, encoding="utf-8", errors="surrogateescape")
        jail = ["unshare", "--user", "--map-user=65534", "--map-group=65534", "--mount", "--net", "--pid", "--ipc"]
        jail += ["--uts", "--fork", "--kill-child", f"--root={root}", "--wd=/job"]
        root.chmod(0o555)
        environment = {"PATH": "/nothing", "HOME": "/job", "BASH_ENV": "/preamble", "LC_ALL": "C"}
        process = subprocess.Popen(
            [*jail, "/bin/bash", "/job/launch.sh"],
            env=environment,
            executable=shutil.which("unshare"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            _, complaint = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)  # `--kill-child`: everything in the place goes with it.
            _, complaint = process.communicate()
        if complaint.startswith(b"unshare:"):
            raise RuntimeError(complaint.decode(errors="replace").strip())
        files = sorted((root / "calls").iterdir(), key=lambda file: file.stat().st_mtime_ns)
        calls = [file.read_bytes().decode(errors="surrogateescape").split("\0")[:-1] for file in files[:2000]]
    return calls
