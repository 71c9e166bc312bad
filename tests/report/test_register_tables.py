"""Tables and pages of devices and models, word by word, for made-up ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taylor.register.device import LinkTier, SoftwareStack
from taylor.register.layers import (
    AttentionSpec,
    IndexerSpec,
    LayerSpec,
    LinearAttentionSpec,
    MambaSpec,
    MlaSpec,
    MlpSpec,
    MoeSpec,
)
from taylor.register.model import ModelSpec
from taylor.register.registry import Registry
from taylor.report.devices import device_page, devices_table
from taylor.report.models import layer_text, model_page, model_parts, model_record, models_table, short_count
from tests.report_cases import block, printed

REGISTRY = Registry.load()
CARD = replace(
    REGISTRY.device("h100"), name="card [x]", aliases=("c1", "c2"), memory_mib=81920, usable_memory_mib=80000,
    peak_tflops={"fp8": 1978.9, "bf16": 989.5}, memory_gb_s=3352.0, host_link_gb_s=55.0, host_memory_mib=262144,
    links=(LinkTier("node", 400.0, 8), LinkTier("domain", 450.0, 1024, full_mesh=True), LinkTier("fabric", 50.0)),
    efficiency={"gemm": 0.55, "attention": 0.4}, stack="software 1",
    stacks=(SoftwareStack("older", "2024", "torch 2.1", {}),),
    sources={"all": "a page", "peak_tflops": "a data sheet [1]"},
)  # fmt: skip
BARE = replace(
    CARD, name="bare", aliases=(), links=(LinkTier("domain", 16.5, 4),), stacks=(), host_link_gb_s=None,
    host_memory_mib=None, stack="", peak_tflops={"fp16": 300.0},
)  # fmt: skip


def test_devices_stand_in_a_table():
    assert printed(devices_table([CARD]), 100) == block(
        """
        device    GiB  TB/s  16-bit    fp8  fp4      domain  fabric  host
        card [x]   80  3.35     990  1,979    -  1024 x 450      50    55
         TFLOP/s dense (16-bit: bf16, else fp16); GB/s one way; domain:
                                  cards x GB/s
        """
    )
    assert printed(devices_table([CARD, replace(BARE, links=CARD.links[1:2])]), 45) == block(
        """
        device  …  T…  16-…  fp8  …   domain  fab…  …
        card …  …  3…   990  1,…  -  1024 x…    50  …
        bare    …  3…   300    -  -  1024 x…     -  -
        TFLOP/s dense (16-bit: bf16, else fp16); GB/s
                one way; domain: cards x GB/s
        """
    )


def test_a_device_has_a_page_with_a_line_a_figure():
    assert printed(device_page(CARD), 90) == block(
        """
        card [x] (c1, c2)
        figure                value                            source
        memory                81,920 MiB                       a page
        usable memory         80,000 MiB                       a page
        peak fp8              1,978.9 TFLOP/s                  a data sheet [1]
        peak bf16             989.5 TFLOP/s                    as above
        memory bandwidth      3,352 GB/s                       a page
        node link             8 cards, 400 GB/s                a page
        domain link           1,024 cards, 450 GB/s, in pairs  a page
        fabric link           50 GB/s                          a page
        host link             55 GB/s                          a page
        host memory a card    262,144 MiB                      a page
        link latency          10 us                            a page
        efficiency gemm       0.55                             fitted on software 1
        efficiency attention  0.4                              as above
        stack older           2024                             torch 2.1
        """
    )
    assert printed(device_page(BARE), 50) == block(
        """
        bare
        figure                value               source
        memory                81,920 MiB          a page
        usable memory         80,000 MiB          a page
        peak fp16             300 TFLOP/s         a data
                                                  sheet
                                                  [1]
        memory bandwidth      3,352 GB/s          a page
        domain link           4 cards, 16.5 GB/s  a page
        fabric link           not published
        link latency          10 us               a page
        efficiency gemm       0.55                share of
                                                  the peak
                                                  that a
                                                  step
                                                  reaches
                                                  (docs/co
                                                  st_model
                                                  .md)
        efficiency attention  0.4                 as above
        """
    )


DENSE = ModelSpec("dense [x]", 4, 64, 4, 2, 16, 128, 1000, source="a [paper]")
MIXED = replace(
    DENSE, name="mixed", kinds=(
        LayerSpec("attn", AttentionSpec(4, 4, 16), mlp=MlpSpec(128)),
        LayerSpec("moe", AttentionSpec(4, 2, 16), moe=MoeSpec(8, 2, 32)),
    ), pattern="1 attn, 3 moe", mtp_layers=2, mtp_kinds=("attn", "moe"), tied_embedding=True, extra_parameters=5000,
    published_parameters=8_030_261_248, source="",
)  # fmt: skip


def test_models_stand_in_a_table():
    assert printed(models_table([DENSE, MIXED]), 100) == block(
        """
        model      parameters  active  layers  hidden  kinds
        dense [x]       0.0 B               4      64  4 dense
        mixed           0.0 B   0.0 B       4      64  1 attn, 3 moe
        parameters without MTP modules; active: those that one token
                               passes through
        """
    )
    assert printed(models_table([MIXED]), 36) == block(
        """
        mod…  paramete…  acti…  lay…  hidd…
        mix…      0.0 B  0.0 B     4     64
          parameters without MTP modules;
        active: those that one token passes
                      through
        """
    )


def test_a_model_has_a_page_with_a_line_a_part():
    assert printed(model_page(DENSE), 100) == block(
        """
        dense [x]
        part            count  parameters each  together  what it is
        embedding           1           64,000    64,000  1,000 words x 64
        dense               4           36,992   147,968  4 heads of 16, 2 of keys; gated MLP 128
        last norm           1               64        64
        head                1           64,000    64,000
        all                                      276,032
        a token passes                           276,032
        source: a [paper]
        """
    )
    assert printed(model_page(MIXED), 100) == block(
        """
        mixed
        part               count  parameters each   together  what it is
        embedding              1           64,000     64,000  1,000 words x 64
        beside the layers      1            5,000      5,000  a vision encoder, norms of the embedding and
                                                              such
        attn                   1           41,088     41,088  4 heads of 16; gated MLP 128
        moe                    3           62,080    186,240  4 heads of 16, 2 of keys; 2 of 8 experts 32
        last norm              1               64         64
        head                   1                0          0  the embedding's own
        mtp                    2          111,552  (223,104)  attn + moe; not in the total
        all                                          296,392  published: 8.0 B
        a token passes                               185,800
        layers in order: 1 attn, 3 moe
        """
    )
    assert printed(model_page(MIXED), 50) == block(
        """
        mixed
        part              cou…  parameters each  together
        embedding            1           64,000    64,000
        beside the laye…     1            5,000     5,000
        attn                 1           41,088    41,088
        moe                  3           62,080   186,240
        last norm            1               64        64
        head                 1                0         0
        mtp                  2          111,552  (223,10…
        all                                       296,392
        a token passes                            185,800
        layers in order: 1 attn, 3 moe
        """
    )


def test_embedding_head_and_norm_of_a_model_are_counted_by_hand():
    parts = {part.name: part for part in model_parts(DENSE)}
    assert [(parts[name].count, parts[name].parameters) for name in ("embedding", "last norm", "head")] == [
        (1, 1000 * 64), (1, 64), (1, 1000 * 64),
    ]  # fmt: skip
    # Queries and output 64 x 64 each, keys and values 64 x 32 each, a gated MLP of 3 x 64 x 128, two norms of 64.
    layers = next(part for part in parts.values() if part.count == 4)
    assert layers.parameters == 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
    assert [part.counted for part in model_parts(MIXED)][-2:] == [True, False]
    record = model_record(MIXED)
    assert record["parameters"] == sum(
        part["count"] * part["parameters"] for part in record["parts"] if part["counted"]
    )


HEADS = AttentionSpec(8, 8, 64)


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (LayerSpec("x", mlp=MlpSpec(4096, gated=False)), "MLP 4,096"),
        (LayerSpec("x", HEADS, mlp=MlpSpec(4096)), "8 heads of 64; gated MLP 4,096"),
        (LayerSpec("x", replace(HEADS, n_kv_heads=2)), "8 heads of 64, 2 of keys"),
        (LayerSpec("x", replace(HEADS, reach="sliding", window=4096)), "8 heads of 64, sliding 4,096"),
        (LayerSpec("x", replace(HEADS, window=4096)), "8 heads of 64"),
        (LayerSpec("x", replace(HEADS, compression=4)), "8 heads of 64, a key for every 4 before"),
        (LayerSpec("x", replace(HEADS, indexer=IndexerSpec(4, 32, 2048, 1))), "8 heads of 64, 2,048 chosen"),
        (LayerSpec("x", replace(HEADS, latent=MlaSpec(512, 64, 128, 128))), "8 heads of 192, latent 512"),
        (LayerSpec("x", replace(HEADS, latent=MlaSpec(512, 64, 128, 128, 1536))),
         "8 heads of 192, latent 512, queries' 1,536"),
    ],
)  # fmt: skip
def test_attention_is_described_by_its_heads_and_its_reach(layer, text):
    assert layer_text(layer) == text


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (LayerSpec("x", mamba=MambaSpec(8192, 64, 128)), "Mamba-2, 64 heads, 8,192 channels, state 128"),
        (LayerSpec("x", mamba=MambaSpec(8192, 1, 16, dt_rank=256)), "Mamba 8,192 channels, state 16"),
        (LayerSpec("x", linear=LinearAttentionSpec("gdn", 16, 32, 64, 128)),
         "linear attention, 16 and 32 heads of 128"),
        (LayerSpec("x", moe=MoeSpec(64, 8, 1024)), "8 of 64 experts 1,024"),
        (LayerSpec("x", moe=MoeSpec(64, 8, 1024, n_shared=2, latent=512, n_empty=4)),
         "8 of 64 and 4 empty experts 1,024 on 512, shared 2,048"),
    ],
)  # fmt: skip
def test_a_layer_is_described_by_its_mixer_its_mlp_and_its_experts(layer, text):
    assert layer_text(layer) == text


def test_parameters_are_counted_in_billions_and_from_one_on_in_trillions():
    assert [short_count(n) for n in (10**8, 8_030_261_248, 999_949_999_999, 999_950_000_000, 1_573_000_000_000)] == [
        "0.1 B", "8.0 B", "999.9 B", "1.00 T", "1.57 T",
    ]  # fmt: skip
