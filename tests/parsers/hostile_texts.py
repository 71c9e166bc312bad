"""Texts that grow: pieces which a slow reader would read in more than linear time, and sound tables of every kind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from taylor.dryrun.logs import read_peak
from taylor.parsers.galvatron.computation import read_computation
from taylor.parsers.megatron.run_log import read_log
from taylor.parsers.paddlenlp.auto_tuner import read_history
from taylor.parsers.profiles.allocations import read_allocations
from taylor.parsers.profiles.ascend import read_kernel_details, read_trace_view
from taylor.parsers.profiles.ascend_tables import read_cluster_steps, read_memory_record, read_operator_memory
from taylor.parsers.profiles.kineto import read_kineto
from taylor.parsers.profiles.operators import read_operators
from taylor.parsers.profiles.transfers import read_transfers
from taylor.parsers.tables.candidates import read_candidates
from taylor.parsers.tables.device_prices import read_device_prices
from taylor.parsers.tables.generation import read_generation
from taylor.parsers.tables.lengths import read_lengths
from taylor.parsers.tables.memory_profile import read_memory_profile
from taylor.parsers.tables.ratios import read_ratios
from taylor.parsers.tables.worker_log import read_worker_log
from taylor.workflows.measuring.measured_peaks import read_peaks
from taylor.workflows.showing.extract import describe_saved_solution

Grown = Callable[[int], str]
"""A text of about a number of characters."""


def _times(piece: str, before: str = "", after: str = "") -> Grown:
    return lambda size: before + piece * (size // len(piece)) + after


def _nested(opening: str, inside: str, closing: str, before: str = "", after: str = "") -> Grown:
    def grown(size: int) -> str:
        depth = size // (len(opening) + len(closing))
        return before + opening * depth + inside + closing * depth + after

    return grown


def _numbered(line: str, before: str = "", after: str = "") -> Grown:
    return lambda size: before + "".join(line.format(k) for k in range(size // len(line))) + after


SHELL: dict[str, Grown] = {
    "joined quotes": _times("'a'", "X=", "\n"),
    "joined double quotes": _times('"a"', "X=", "\n"),
    "backslashes": _times("\\a", "X=", "\n"),
    "escaped quotes": _times('\\"', 'X="', '"\n'),
    "a quote that stays open": _times("a", 'X="', "\n"),
    "quotes in turn": _times("\"'", "X=", "\n"),
    "quotes read twice": _times("'a'", 'eval "X=', '"\n'),
    "backslashes read twice": _times("\\a", "bash -c 'X=", "'\n"),
    "commands": _times("echo a\n"),
    "assignments": _numbered("X{0}={0}\n"),
    "a growing text": _times('X="$X a"\n', 'X=""\n'),
    "a growing array": _times("X+=(a)\n", "X=()\n"),
    "continued lines": _times("a \\\n", "echo ", "\n"),
    "comments": _times("# a\n"),
    "blanks": _times(" ", after="\n"),
    "empty lines": _times("\n"),
    "a list": _times("a;", after="\n"),
    "a pipeline": _times("a|", after="a\n"),
    "conditions": _times("a&&", after="a\n"),
    "branches": _times("if [ $A = 1 ]; then X=1; fi\n"),
    "nested branches": _nested("if [ $A = 1 ]; then\n", "X=1\n", "fi\n"),
    "one long branch": _times("elif [ $A = 2 ]; then X=2\n", "if [ $A = 1 ]; then X=1\n", "fi\n"),
    "clauses": _times("a) X=1;;\n", "case $A in\n", "esac\n"),
    "a document": _times("a\n", "cat <<EOF\n", "EOF\n"),
    "documents": _times("cat <<EOF\na\nEOF\n"),
    "documents that stay open": _times("cat <<EOF\n"),
    "brackets of arithmetic": _nested("(", "1", ")", "X=$((", "))\n"),
    "a sum": _times("1+", "X=$((", "1))\n"),
    "digits of arithmetic": _times("9", "X=$((", "))\n"),
    "powers": _times("9**", "X=$((", "1))\n"),
    "open substitutions": _times("$(", "X=", "\n"),
    "nested substitutions": _nested("$(", "a", ")", "X=", "\n"),
    "nested defaults": _nested("${A:-", "a", "}", "X=", "\n"),
    "open defaults": _times("${A:-", "X=", "\n"),
    "backticks": _times("``", "X=", "\n"),
    "braces": _times("a,", "X={", "b}\n"),
    "open braces": _times("{", "echo ", "\n"),
    "calls": _times("f\n", "f() { X=1; }\n"),
    "functions": _numbered("f{0}() {{ X=1; }}\n"),
    "a loop": _times("a ", "for i in ", "; do X=$i; done\n"),
    "nested loops": _nested("for i in 1; do\n", "X=1\n", "done\n"),
    "negations": _times("! ", "[ ", "a ] && X=1\n"),
    "one flag many times": _times("--flag-a 1 ", "torchrun a.py ", "\n"),
    "many flags": _numbered("--f{0} {0} ", "torchrun a.py ", "\n"),
    "uses of a variable": _times("$A ", 'A=1\nX="', '"\n'),
    "a removed suffix": _times("a", "A=", "\nX=${A%%*b*c*d}\n"),
    "a replaced text": _times("a", "A=", "\nX=${A//a/b}\n"),
    "a pattern with stars": _times("a", "case ", f" in {'*a' * 20}b) X=1;; esac\n"),
    "a regular expression": _times("a", "A=", "\nif [[ $A =~ ^(a+)+$ ]]; then X=1; fi\n"),
    "redirections": _times(">a ", "echo ", "\n"),
    "files read in": _times("source ./x.sh\n"),
    "digits of a flag": _times("9", "torchrun a.py --num-layers ", "\n"),
    "sub-shells": _nested("(", "a", ")", after="\n"),
    "words of another program": _times("a ", "X=$(echo ", "| sed 's/a/b/g')\n"),
}  # fmt: skip

YAML: dict[str, Grown] = {
    "keys": _numbered("k{0}: 1\n"),
    "a list": _times("- a\n", "k:\n"),
    "a flow list": _times("a,", "k: [", "a]\n"),
    "brackets that stay open": _times("[", "k: ", "\n"),
    "brackets": _nested("[", "", "]", "k: ", "\n"),
    "steps to the right": lambda size: "".join(" " * k + "a:\n" for k in range(round((2 * size) ** 0.5))),
    "comments": _times("# a\n"),
    "quotes": _times("''", "k: '", "'\n"),
    "escaped quotes": _times('\\"', 'k: "', '"\n'),
    "a quote that stays open": _times("a ", 'k: "'),
    "a block": _times("  a\n", "k: |\n"),
    "a plain text": _times("a ", "k: ", "\n"),
    "digits": _times("9", "k: ", "\n"),
    "digits with marks": _times("_", "k: 1", "\n"),
    "base 60": _times(":00", "k: 1", "\n"),
    "nearly a fraction": _times("0", "k: 1.", "x\n"),
    "nearly a date": _times(" ", "k: 2001-01-01", "x\n"),
    "anchors": _numbered("k{0}: &a{0} 1\n"),
    "aliases": _times("*a,", "k: &a 1\nl: [", "*a]\n"),
    "merged keys": _numbered("l{0}: {{<<: *a}}\n", "k: &a {b: 1}\n"),
    "documents": _times("---\na: 1\n"),
    "blanks": _times(" ", after="\n"),
    "tabs": _times("\t", "k: a", "\n"),
    "directives": _times("%A\n"),
    "tags": _times("!a", "k: ", "\n"),
    "one key many times": _times("k: 1\n"),
    "open variables": _times("${a:", "k: '", "'\n"),
    "variables": _times("${a}", "k: '", "'\n"),
    "colons": _times("a:", "k: ", "\n"),
    "dashes": _times("- ", after="\n"),
}  # fmt: skip

TOML: dict[str, Grown] = {
    "keys": _numbered("k{0} = 1\n", "[x]\n"),
    "tables": _numbered("[t{0}]\n"),
    "a list of tables": _times("[[a]]\n"),
    "dots of a key": _times("a.", "[x]\n", "a = 1\n"),
    "dots of a table": _times("a.", "[", "a]\n"),
    "an array": _times("1,", "k = [", "]\n"),
    "nested arrays": _nested("[", "", "]", "k = ", "\n"),
    "lines of an array": _times("1, # a\n", "k = [\n", "]\n"),
    "escaped quotes": _times('\\"', 'k = "', '"\n'),
    "a long text": _times("a\n", 'k = """', '"""\n'),
    "a quote that stays open": _times("a", 'k = "'),
    "comments": _times("# a\n"),
    "digits": _times("9", "k = ", "\n"),
    "digits with marks": _times("_1", "k = 1", "\n"),
    "an inline table": _numbered("a{0} = 1,", "k = {", "b = 1}\n"),
    "empty lines": _times("\n"),
}  # fmt: skip

JSON: dict[str, Grown] = {
    "keys": _numbered('"k{0}": 1,', after='"k": 1'),
    "one key many times": _times('"k": 1,', after='"k": 1'),
    "a list": _times("1,", '"k": [', "1]"),
    "nested lists": _nested("[", "", "]", '"k": '),
    "nested objects": _nested('{"a":', "1", "}", '"k": '),
    "lists that stay open": _times("[", '"k": '),
    "digits": _times("9", '"k": '),
    "digits of a size": _times("9", '"num_hidden_layers": '),
    "an exponent": _times("9", '"k": 1e'),
    "escaped quotes": _times('\\"', '"k": "', '"'),
    "letters by number": _times("\\u0041", '"k": "', '"'),
    "a quote that stays open": _times("a", '"k": "'),
    "blanks": _times(" ", after='"k": 1'),
    "commas": _times(",", '"k": 1'),
    "a long name": _times("a", '"', '": 1'),
    "kinds of layers": _times('"full_attention",', '"layer_types": [', '"full_attention"]'),
}  # fmt: skip

_KERNELS = (
    "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Stream ID,Input Shapes,Input Data Types,"
    "Output Shapes\n"
)
_KERNEL = '1,MatMul{0},MatMulV2,AI_CORE,{0}00.5,12.5,3,"8,16;16,8",DT_BF16;DT_BF16,"8,8"\n'
_TRANSFER = {
    "Communication Time Info": {"Elapse Time(ms)": 1.5, "Wait Time(ms)": 0.5},
    "Communication Bandwidth Info": {"RDMA": {"Transit Size(MB)": 4}, "HCCS": {"Transit Size(MB)": 8}},
}

Reader = Callable[[Path], Any]

TABLES: dict[str, tuple[Reader, str, str, str, str]] = {
    "candidates": (read_candidates, "a.csv", "dp,tp,pp,ep,peakMem,micro_batches\n", "8,4,4,8,50000.5,16\n", ""),
    "ratios": (
        read_ratios, "a.csv", "dp,tp,pp,ep,dmratio,bfratio,re_grow_ration,hratio,moe_bw\n",
        "8,4,4,{0},0.33,2.0,1.0,1.5,12.5\n", "",
    ),
    "lengths": (read_lengths, "a.csv", "length,count\n", "{0}128,10\n", ""),
    "generation": (read_generation, "a.csv", "concurrent,tokens_per_s\n", "{0}1,1000.5\n", ""),
    "device prices": (
        read_device_prices, "a.csv", "device,watts,price_per_hour,currency\n", "h100-{0},700,2.5,EUR\n", "",
    ),
    "worker log": (
        read_worker_log, "workerlog.0", "",
        "I1020 09:15:07.265326 22317 standalone_executor.cc:217] Profiler Info: Job ({0}), type = forward, "
        "micro_batch_id = {0}, job_start_time = {0}000.5, job_end_time = {0}001.25\n", "",
    ),
    "peak of a log": (read_peak, "a.log", "", "Used peak memory usage (without fragments): {0}12M\n", ""),
    "Megatron's log": (
        lambda file: read_log(file.read_text()), "a.log", "",
        "Params for bucket {0} (1024 elements, 1024 padded size):\n module.decoder.layers.0.mlp{0}.weight\n"
        " iteration {0}1/ 100 | elapsed time per iteration (ms): 1234.5 | max allocated: 123.25\n", "",
    ),
    "kernels": (read_kernel_details, "kernel_details.csv", _KERNELS, _KERNEL, ""),
    "operators": (read_operators, "kernel_details.csv", _KERNELS, _KERNEL, ""),
    "steps of a cluster": (
        read_cluster_steps, "a.csv",
        "Step,Type,Index,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble\n",
        "1,rank,{0},1000.5,20.5,1.5,22,3,1019,5\n", "",
    ),
    "memory record": (
        read_memory_record, "a.csv", "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB)\n",
        "PTA,{0}1.5,100.5,200.5\n", "",
    ),
    "operator memory": (read_operator_memory, "a.csv", "Allocation Total Allocated(MB)\n", "{0}1.5\n", ""),
    "allocations": (
        read_allocations, "a.csv",
        "Name,Size(KB),Allocation Time(us),Release Time(us),Allocation Total Allocated(MB)\n",
        "a,4,{0}1.5,{0}2.5,8\n", "",
    ),
    "transfers": (
        read_transfers, "a.json", '{"step1": {"p2p": {}, "collective": {"x": {}',
        ', "hcom_allReduce__{0}@1": ' + json.dumps(_TRANSFER).replace("{", "{{").replace("}", "}}"), "}}}",
    ),
    "Ascend's trace": (
        read_trace_view, "trace_view.json",
        '[{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "Ascend Hardware"}}',
        ', {{"ph": "X", "name": "MatMul", "pid": 1, "tid": 3, "ts": {0}00.5, "dur": 12.5, '
        '"args": {{"Task Type": "AI_CORE"}}}}',
        "]",
    ),
    "Kineto's trace": (
        read_kineto, "rank-0.json", '{"distributedInfo": {"rank": 0}, "traceEvents": [{"ph": "M"}',
        ', {{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": {0}00.5, "dur": 12.5, '
        '"args": {{"device": 0, "stream": 7}}}}',
        "]}",
    ),
    "measured peaks": (read_peaks, "a.csv", "file,stage,peak_mib\n", "job{0}.sh,{0},50000.5\n", ""),
    "runs of a tuner": (
        read_history, "history.csv",
        "job_id,dp_degree,mp_degree,pp_degree,sharding_degree,vpp_degree,micro_batch_size,acc_steps,max_mem_usage\n",
        "{0},1,2,4,8,1,2,16,50000.5\n", "",
    ),
    "saved solution": (
        describe_saved_solution, "a.sol", "# status optimal\n# objective 10.5\n# bound 10.5\n",
        "x_dense[{0},0] 4\n", "",
    ),
    "Galvatron's computation": (
        read_computation, "computation_profiling_bf16.json", '{"layertype_0_bsz1_seq4096": 5.5',
        ', "layertype_0_bsz{0}1_seq4096": 5.5', "}",
    ),
    "memory profile": (
        read_memory_profile, "a.json",
        '{"device_limit": 55296, "static": {"first": 1, "middle": 2, "last": 3}, "layer": {"dense": 866}, '
        '"activation": {"dense": {"none": 479, "select": 400, "full": 30}}',
        "", "}",
    ),
}  # fmt: skip
"""By kind: reader, name of the file, its beginning, a row with its number as ``{0}``, and its end."""

_NUMBER = re.compile(r"(?<![\w.{])\d+(?:\.\d+)?(?![\w}])")


def table_of(kind: str, rows: int) -> tuple[Reader, str, str]:
    """Reader of a table, the name of its file, and a sound text with a number of rows."""
    read, name, begin, row, end = TABLES[kind]
    return read, name, begin + "".join(row.format(k) for k in range(1, rows + 1)) + end


def with_huge_numbers(text: str, digits: int = 100_000) -> Iterator[tuple[str, str]]:
    """The text with one of its numbers much longer, for every number in it; the number first."""
    for match in _NUMBER.finditer(text):
        for huge in ("9" * digits, "-" + "9" * digits, "0." + "0" * digits + "1", "1e" + "9" * 20):
            yield match[0], text[: match.start()] + huge + text[match.end() :]
