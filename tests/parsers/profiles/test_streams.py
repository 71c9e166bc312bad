"""Traces and tables read piece by piece: any cut, any damage is an error with its place."""

from __future__ import annotations

import gzip
import json
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taylor.base.errors import InputError
from taylor.parsers.profiles import json_stream
from taylor.parsers.profiles.json_stream import stream_events
from taylor.parsers.profiles.kernels import (
    BACKWARD_MARKER,
    COLLECTIVE,
    COMPUTE,
    FORWARD_MARKER,
    NO_MARKER,
    RECEIVE,
    SEND,
    TRANSFER,
    classify,
    norm_marker,
    parse_us,
)
from taylor.parsers.profiles.tables import stream_rows

EVENTS = [{"ph": "X", "name": 'a "q" \\ ü ]}', "ts": "12.345", "args": {"x": [1, 2, {"y": None}]}}, {"ph": "M"}, {}]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 4096])
@pytest.mark.parametrize("whole", [EVENTS, {"a": 1.25, "traceEvents": EVENTS, "z": {"k": [1]}}, []])
def test_events_are_the_same_whatever_the_pieces(whole: object, chunk: int, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", chunk)
    path = tmp_path / "t.json"
    path.write_text(json.dumps(whole, ensure_ascii=False, indent=1), encoding="utf-8")
    entries: dict[str, object] = {}
    found = list(stream_events(path, lambda key, value: entries.__setitem__(key, value)))
    assert found == (whole["traceEvents"] if isinstance(whole, dict) else whole)
    assert entries == ({"a": 1.25, "z": {"k": [1]}} if isinstance(whole, dict) else {})


def test_a_trace_cut_at_any_byte_is_an_error_with_its_place(tmp_path: Path) -> None:
    text = json.dumps({"rank": 12, "traceEvents": EVENTS, "last": 345}).encode()
    path = tmp_path / "t.json"
    for cut in range(len(text)):
        path.write_bytes(text[:cut])
        with pytest.raises(InputError, match="character"):
            list(stream_events(path))


def test_a_compressed_trace_cut_anywhere_is_an_error(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps(EVENTS * 20).encode())
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed)
    assert list(stream_events(path)) == EVENTS * 20
    for cut in range(2, len(packed)):
        path.write_bytes(packed[:cut])
        with pytest.raises(InputError):
            list(stream_events(path))


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_give_events_or_a_named_error(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        path.write_bytes(data)
        try:
            assert all(isinstance(event, dict) for event in stream_events(path))
        except InputError as error:
            assert "t.json" in str(error)


@pytest.mark.parametrize(
    "text, nanoseconds",
    [
        ("1736405443881410.320\t", 1736405443881410320),
        ("5.28", 5280),
        ("7", 7000),
        ("0.0015", 1),
        ("1.69512E+15", 1695120000000000000),
    ],
)
def test_microseconds_are_read_exactly(text: str, nanoseconds: int) -> None:
    assert parse_us(text) == nanoseconds


@pytest.mark.parametrize("text", ["", "N/A", "nan", "inf", "1_0", "12.3.4", "AI_CORE"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_us(text)


@pytest.mark.parametrize(
    "name, kind, role, marker",
    [
        ("Default/network/FlashAttentionScore-op123", "FlashAttentionScore", COMPUTE, FORWARD_MARKER),
        (
            "aclnnFlashAttentionScoreGrad_FlashAttentionScoreGrad_FlashAttentionScoreGrad",
            "N/A",
            COMPUTE,
            BACKWARD_MARKER,
        ),
        ("aclnnFlashAttentionScore_FlashAttentionScore_FlashAttentionScore_12", "", COMPUTE, FORWARD_MARKER),
        ("FlashAttentionScoreTiling", "Tiling", COMPUTE, NO_MARKER),
        ("hcom_allReduce__445_2", "hcom_allReduce_", COLLECTIVE, NO_MARKER),
        ("hcom_send__1_2", "hcom_send_", SEND, NO_MARKER),
        ("hcom_receive__1_2", "N/A", RECEIVE, NO_MARKER),
        ("hcom_batchSendRecv__1", "hcom_batchSendRecv_", TRANSFER, NO_MARKER),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<128>>(Flash_fwd_params)", "", COMPUTE, FORWARD_MARKER),
        ("void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<T>(P)", "", COMPUTE, BACKWARD_MARKER),
        ("void flash_bwd_dot_do_o_kernel<true, T>(P)", "", COMPUTE, NO_MARKER),
        ("void flash_bwd_convert_dq_kernel<T>(P)", "", COMPUTE, NO_MARKER),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(P)", "", COMPUTE, FORWARD_MARKER),
        ("fmha_cutlassB_bf16_aligned_128x64_k128_sm80(P)", "", COMPUTE, BACKWARD_MARKER),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6", "", COMPUTE, FORWARD_MARKER),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_3", "", COMPUTE, BACKWARD_MARKER),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "", TRANSFER, NO_MARKER),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", "", COLLECTIVE, NO_MARKER),
        ("void at::native::vectorized_elementwise_kernel<4>(int)", "", COMPUTE, NO_MARKER),
    ],
)
def test_kernels_are_known_by_type_or_name(name: str, kind: str, role: int, marker: int) -> None:
    assert classify(name, kind) == (role, marker)


@pytest.mark.parametrize(
    "label, marker",
    [
        ("RmsNorm", FORWARD_MARKER),
        ("AddRmsNorm", FORWARD_MARKER),
        ("LayerNormV3", FORWARD_MARKER),
        ("LayerNormV4", FORWARD_MARKER),
        ("aclnnRmsNorm_RmsNorm_RmsNorm", FORWARD_MARKER),
        ("RmsNormGrad", BACKWARD_MARKER),
        ("LayerNormXBackpropV3", BACKWARD_MARKER),
        ("LayerNormBetaGammaBackpropV2", BACKWARD_MARKER),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)", FORWARD_MARKER),
        ("void at::native::(anonymous namespace)::layer_norm_grad_input_kernel<float>(int)", BACKWARD_MARKER),
        ("void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float>(int)", BACKWARD_MARKER),
        ("void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<T>(P)", FORWARD_MARKER),
        ("void transformer_engine::normalization::ln_bwd_finalize_tuned_kernel<T>(P)", BACKWARD_MARKER),
        ("void cuApplyRMSNorm<float, float>(float*)", FORWARD_MARKER),
        ("void cuComputePartGradGammaBeta<float>(float*)", BACKWARD_MARKER),
        ("_layer_norm_fwd_1pass_kernel", FORWARD_MARKER),
        ("triton_red_fused_add_native_layer_norm_3", NO_MARKER),
        ("LpNormReduceV2", NO_MARKER),
        ("void multi_tensor_apply_kernel<L2NormFunctor>(int)", NO_MARKER),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>(int)", NO_MARKER),
        ("Default/network/ffn_layernorm/Cast", NO_MARKER),
        ("RotaryMul", NO_MARKER),
    ],
)
def test_norm_kernels_are_known_by_name_and_direction(label: str, marker: int) -> None:
    assert norm_marker(label) == marker


def test_a_table_that_ends_inside_a_row_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "k.csv"
    path.write_bytes(b'A,B\r\n1,"""2;3"""\r\n4,5')
    with pytest.raises(InputError, match="cut short"):
        list(stream_rows(path, ("A",)))


def test_columns_are_found_by_header_and_twins_refused(tmp_path: Path) -> None:
    path = tmp_path / "k.csv"
    path.write_bytes(b'\xef\xbb\xbfB,A\r\n\r\n1,"""2;3"""\r\n')
    assert list(stream_rows(path, ("A", "B"), ("C",))) == [(3, ['"2;3"', "1", None])]
    path.write_bytes(b"A,A\n1,2\n")
    with pytest.raises(InputError, match="twice"):
        list(stream_rows(path, ("A",)))
    path.write_bytes(b"A\n1\n")
    with pytest.raises(InputError, match="no such column"):
        list(stream_rows(path, ("B",)))
    path.write_bytes(b"A,B\n1\n")
    with pytest.raises(InputError, match="row 2: has 1 cells and the header 2"):
        list(stream_rows(path, ("A",)))


@pytest.mark.parametrize("text, words", [
    ("{1: 2}", "a key expected"), ('{"traceEvents" [1]}', "':' expected"), ('{"traceEvents": [{}', "cut short"),
    ('[{"a": 1} {"b": 2}]', "',' expected"), ('[{"a": tru}]', "is not JSON"), ("[{}] more", "text after the trace"),
    ("", "cut short"), ("[" * 100_000, "nested too deeply"), ("{}", "traceEvents"),
])  # fmt: skip
def test_what_is_no_trace_is_refused_with_its_place(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        list(stream_events(path))


CUT = (
    '[{"a": t', '[{"a": tru', '[{"a": nul', '[{"a": -', '[{"a": 1.', '[{"a": 1e', '[{"a": 1e-', '[{"a": "x',
    '[{"a": "x\\', '[{"a": "\\u0', '[{"a": [', '[{"a": [1', '[{"a": [1,', '[{"a"', '[{"a":', '[{', '[', '[{"a": 1}',
    '[{"a": 1},', '{"b', '{"b": fal',
)  # fmt: skip
WRONG = (
    '[{"a": ' + "1" * 5000 + "}]",
    '[{"a": "\\u0"',
    '[{"a": x',
    '[{"a": trU',
    '[{"a": [x',
    "[x",
    "[{a",
    '[{"a": 1 2',
    '[{"a": tru]',
    '[{"a": [1 x',
    "[{'a",
)


@pytest.mark.parametrize(
    "text, words", [(each, "cut short") for each in CUT] + [(each, "is not JSON") for each in WRONG]
)
def test_a_cut_text_is_told_from_one_that_is_wrong(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        list(stream_events(path))


def test_a_folder_and_a_missing_trace_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        list(stream_events(tmp_path))
    with pytest.raises(InputError, match="no such file"):
        list(stream_events(tmp_path / "t.json"))


BLANKS = b'{"traceEvents": [' + b" " * (196 * 2**20) + b"]}"
EMPTY_EVENTS = b'{"traceEvents": [' + b"{}," * (64 * 2**20) + b"{}]}"


@pytest.mark.slow
@pytest.mark.parametrize("text", [BLANKS, EMPTY_EVENTS], ids=["blanks", "empty events"])
def test_a_small_file_that_unpacks_to_a_great_deal_is_refused_soon(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text, compresslevel=9))
    assert path.stat().st_size < 300_000
    began = time.process_time()
    with pytest.raises(InputError, match="unpacks to more than 40 times its size"):
        for _ in stream_events(path):
            pass
    # A tracer, as of coverage, makes every line of Python several times as long.
    assert time.process_time() - began < (15.0 if sys.gettrace() is None else 150.0)


def test_many_blanks_are_passed_at_once(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents": [' + b" " * (48 * 2**20) + b'{"ph": "X"}]}')
    began = time.process_time()
    assert list(stream_events(path)) == [{"ph": "X"}]
    assert time.process_time() - began < 3.0
