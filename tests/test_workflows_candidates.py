"""Measured and estimated candidates are put on one footing."""

from __future__ import annotations

from register.registry import Registry
from tests.conftest import ROOT
from workflows.candidates import load_candidates

HEADER = "dp,tp,pp,ep,dmratio,bfratio,re_grow_ration,hratio,moe_bw\n"


def test_an_estimate_beside_a_measured_row_counts_only_what_the_row_counts(tmp_path):
    device = Registry.load(None).device("ascend-910b")
    files = [ROOT / "config" / "pretrain_deepseek3_671b_1024p.yaml", ROOT / "config" / "pretrain_llama3_70b.yaml"]
    (tmp_path / "r.csv").write_text(HEADER + "16,4,16,8,0.4,1.8,1,1.5,20\n")
    alone = load_candidates(files, device)
    mixed = load_candidates(files, device, parser_result=tmp_path / "r.csv")
    assert [c.ratios.source for c in mixed] == ["parsed", "estimate"]
    assert alone[1].ratios.tail > 0
    assert (mixed[1].ratios.tail, mixed[1].ratios.lag, mixed[1].ratios.embedding) == (0.0, 0.0, 0.0)
    assert mixed[1].ratios.unit_ms == alone[1].ratios.unit_ms
