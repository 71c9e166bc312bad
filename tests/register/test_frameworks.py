"""The frameworks' records: what they say against what others published, and that nothing else knows a name."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from taylor.cost_model.job.parameters import ParameterGroups
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.states import group_bytes
from taylor.cost_model.memory.statics import MIB, embedding_state_bytes, loss_bytes
from taylor.nd_search.legality import LEGALITY_RULES
from taylor.nd_search.options import SearchContext, SearchOptions
from taylor.nd_search.rule import Rule
from taylor.nd_search.rules import list_rules, select_rules
from taylor.parsers.registry import LAUNCHERS
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import FULL
from taylor.pipeline.schedule import SCHEDULES, ScheduleSpec
from taylor.register.frameworks import (
    COMPILED_LOSS,
    ENGINE_LOSS,
    FRAMEWORKS,
    MEGATRON,
    MINDFORMERS,
    TORCHTITAN,
    Framework,
)
from taylor.register.model import DENSE
from taylor.register.registry import Registry
from taylor.register.trainers import ALL_FRAMEWORKS
from tests.conftest import ROOT
from tests.nd_search_cases import DEVICE, job

DEEPSEEK = Registry.load().model("deepseek-v3-671b")
FIT_STRATEGY = Strategy(16, 4, 16, 8, op=16, micro_batches=64)
"""DP16 TP4 PP16 EP8 with sequence parallelism, s = 4096: the strategy of MindFormers' published fit."""

PARAMETERS = 1 << 20

each_framework = pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=FRAMEWORKS)


# What others published. --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ways", [1, 2, 8, 64])
@pytest.mark.parametrize(
    ("rules", "published"),
    [
        # A published fit of DeepSeek-V3: fp32 gradient 4 and bf16 copy 2 kept whole, fp32 weight 4 and moments 8 split.
        (TrainingRules(framework=MINDFORMERS), lambda d: 4 + 2 + (4 + 8) / d),
        # Megatron-LM, README of the distributed optimizer: «bf16 params, fp32 grads: 18, 6 + 12/d».
        (TrainingRules(framework=MEGATRON, param_bytes=2), lambda d: 6 + 12 / d),
        (TrainingRules(framework=MEGATRON, param_bytes=2, parallel_optimizer=False), lambda d: 18),
        # FSDP shards everything (Rajbhandari et al. 2020, figure 1, P_os+g+p: 16/d).
        (TrainingRules(framework=TORCHTITAN, parameter_shard=True), lambda d: 16 / d),
    ],
    ids=["mindformers", "megatron distributed", "megatron plain", "torchtitan"],
)
def test_a_parameter_takes_the_bytes_that_were_published(rules, published, ways) -> None:  # type: ignore[no-untyped-def]
    held = group_bytes(ParameterGroups(split=PARAMETERS), Strategy(ways, 1, 1, op=ways, micro_batches=2), rules)
    assert float(held.total) == pytest.approx(PARAMETERS * published(ways), rel=1e-12)


@each_framework
def test_a_norm_s_optimizer_is_split_over_dp_and_in_mindformers_over_tp_too(framework: Framework) -> None:
    rules = TrainingRules(framework, param_bytes=2 if framework is MEGATRON else 4)
    held = group_bytes(ParameterGroups(replicated=PARAMETERS), Strategy(8, 4, 1, op=8), rules)
    assert float(held.optimizer) == PARAMETERS * 12 / (32 if framework.name == "mindformers" else 8)


def test_mindformers_embedding_takes_what_the_published_fit_has_more_on_its_first_stage() -> None:
    # Static memory of the first and of a middle stage: 3383 and 2382 MiB.
    found = embedding_state_bytes(DEEPSEEK, FIT_STRATEGY, TrainingRules(vocab_parallel=False)).total / MIB
    assert float(found) == pytest.approx(3383 - 2382, rel=0.05)


def test_a_recomputed_layer_keeps_an_fp32_stream_in_mindformers_and_a_bf16_one_in_megatron() -> None:
    # The published fit has 30 MiB a recomputed layer; Korthikanti et al. 2022 keep 2sbh, split over TP.
    kept = {
        each.name: float(activation_bytes(DEEPSEEK, DENSE, FULL, FIT_STRATEGY, TrainingRules(each))) / MIB
        for each in (MINDFORMERS, MEGATRON)
    }
    assert kept["mindformers"] == pytest.approx(30, rel=0.07)
    assert kept["megatron"] == 2 * 4096 * 7168 / 4 / MIB


def test_ascend_s_attention_keeps_two_statistics_of_eight_fp32_values() -> None:
    # CANN, aclnnFlashAttentionScore: softmaxMaxOut and softmaxSumOut are FLOAT [B, N, Sq, 8].
    batch, heads, sequence = 2, 16, 128
    outputs = [(batch, heads, sequence, 8)] * 2
    assert MINDFORMERS.activations.attention_statistics * batch * heads * sequence == sum(map(math.prod, outputs))
    # Dao 2023, arXiv:2307.08691 §3.1: the log-sum-exp alone.
    assert MEGATRON.activations.attention_statistics == TORCHTITAN.activations.attention_statistics == 1


@each_framework
def test_each_framework_s_cross_entropy_needs_the_record_s_bytes_a_logit(framework: Framework) -> None:
    torch = pytest.importorskip("torch")
    from taylor.dryrun.torch_stage.counter import LiveCounter
    from taylor.dryrun.torch_stage.ends import UnfusedCrossEntropy, VocabularyCrossEntropy

    kept = []

    def of_torch(logits, target):  # type: ignore[no-untyped-def]
        # torchtitan, components/loss.py: the loss of the logits in fp32; the stage keeps its output beside.
        kept.append(logits)
        return torch.nn.functional.cross_entropy(logits.float(), target)

    losses = {
        "mindformers": UnfusedCrossEntropy.apply,
        "megatron": VocabularyCrossEntropy.apply,
        "torchtitan": of_torch,
        # c_softmax_with_cross_entropy is kept in fp32 (--amp_custom_black_list), beside the logits' cast.
        "paddlenlp": UnfusedCrossEntropy.apply,
    }
    tokens, vocabulary = 64, 4096
    target = torch.zeros(tokens, dtype=torch.int64)
    with LiveCounter() as counter:
        hidden = torch.zeros((tokens, 1), dtype=torch.bfloat16, requires_grad=True)
        head = torch.zeros((1, vocabulary), dtype=torch.bfloat16)
        losses[framework.name](hidden @ head, target).backward()
    # Figures a token (hidden, maximum, sum, loss) come on top.
    assert counter.peak / (tokens * vocabulary) == pytest.approx(framework.statics.logits_bytes, rel=0.02)


def test_what_mindformers_loss_keeps_until_its_backward_is_the_record_s_bytes_a_logit() -> None:
    torch = pytest.importorskip("torch")
    from taylor.dryrun.torch_stage.counter import LiveCounter

    class LogSoftmax(torch.autograd.Function):  # type: ignore[misc, name-defined]
        """r1.5.0 mindformers/core/loss/loss.py:225-245, step by step."""

        @staticmethod
        def forward(ctx, logits, label):  # type: ignore[no-untyped-def]
            wide = logits.float()
            shifted = wide - wide.amax(1, keepdim=True)
            total = torch.exp(shifted).sum(-1, keepdim=True)
            one_hot = torch.zeros_like(shifted).scatter_(1, label[:, None], 1.0)
            return shifted - total.log(), one_hot

        @staticmethod
        def backward(ctx, gradient, _):  # type: ignore[no-untyped-def]
            return gradient.bfloat16(), None

    class NegativeLikelihood(torch.autograd.Function):  # type: ignore[misc, name-defined]
        """The same file, lines 278-291: its backward takes both of its inputs."""

        @staticmethod
        def forward(ctx, logarithms, one_hot):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(logarithms, one_hot)
            return (-(logarithms * one_hot)).sum(-1)

        @staticmethod
        def backward(ctx, gradient):  # type: ignore[no-untyped-def]
            logarithms, one_hot = ctx.saved_tensors
            return (logarithms.exp() - one_hot) * gradient[:, None], None

    tokens, vocabulary = 64, 4096
    label = torch.zeros(tokens, dtype=torch.int64)
    with LiveCounter() as counter:
        hidden = torch.zeros((tokens, 1), dtype=torch.bfloat16, requires_grad=True)
        head = torch.zeros((1, vocabulary), dtype=torch.bfloat16)
        before = counter.total
        loss = NegativeLikelihood.apply(*LogSoftmax.apply(hidden @ head, label)).mean()
        kept = counter.total - before
        loss.backward()
    assert kept / (tokens * vocabulary) == pytest.approx(MINDFORMERS.statics.kept_logits_bytes, rel=0.02)


@pytest.mark.parametrize("kernel", [None, COMPILED_LOSS, ENGINE_LOSS])
def test_each_kernel_of_the_loss_needs_the_bytes_a_logit_that_memory_counts(kernel: str | None) -> None:
    torch = pytest.importorskip("torch")
    from taylor.dryrun.torch_stage.counter import LiveCounter
    from taylor.dryrun.torch_stage.ends import EngineCrossEntropy, VocabularyCrossEntropy

    tokens, vocabulary = 64, 4096
    target = torch.zeros(tokens, dtype=torch.int64)
    with LiveCounter() as counter:
        hidden = torch.zeros((tokens, 1), dtype=torch.bfloat16, requires_grad=True)
        head = torch.zeros((1, vocabulary), dtype=torch.bfloat16)
        if kernel == ENGINE_LOSS:
            EngineCrossEntropy.apply(hidden @ head, target).backward()
        else:
            VocabularyCrossEntropy.apply(hidden @ head, target, kernel == COMPILED_LOSS).backward()
    told = loss_bytes(TrainingRules(framework=MEGATRON, loss_kernel=kernel))
    assert counter.peak / (tokens * vocabulary) == pytest.approx(told, rel=0.03)


def test_torch_s_own_loss_over_a_split_vocabulary_needs_what_is_told_of_it() -> None:
    torch = pytest.importorskip("torch")
    loss = pytest.importorskip("torch.distributed.tensor.parallel.loss")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    from torch.distributed.device_mesh import init_device_mesh

    from taylor.dryrun.torch_stage.counter import LiveCounter

    tokens, vocabulary = 64, 4096
    torch.distributed.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        with LiveCounter() as counter:
            logits = torch.zeros((tokens, vocabulary), dtype=torch.bfloat16)
            kept = loss._log_softmax(logits.float(), 1, False, mesh, 0)
            target, count = torch.zeros(tokens, dtype=torch.int64), torch.tensor(float(tokens))
            mean = torch.nn._reduction.get_enum("mean")
            loss._nll_loss_and_log_softmax_backward(
                torch.ones(()), kept, target, None, mean, -100, count, kept.shape, 1, mesh, 0
            )
    finally:
        torch.distributed.destroy_process_group()
    told = loss_bytes(TrainingRules(framework=TORCHTITAN), split=True)
    assert counter.peak / (tokens * vocabulary) == pytest.approx(told, rel=0.02)


def test_the_loss_over_a_split_vocabulary_needs_torchtitan_s_bytes_a_logit() -> None:
    torch = pytest.importorskip("torch")
    from taylor.dryrun.torch_stage.counter import LiveCounter
    from taylor.dryrun.torch_stage.ends import SplitCrossEntropy

    tokens, vocabulary = 64, 4096
    with LiveCounter() as counter:
        hidden = torch.zeros((tokens, 1), dtype=torch.bfloat16, requires_grad=True)
        logits = hidden @ torch.zeros((1, vocabulary), dtype=torch.bfloat16)  # The stage keeps its output beside.
        SplitCrossEntropy.apply(logits, torch.zeros(tokens, dtype=torch.int64)).backward()
    told = loss_bytes(TrainingRules(framework=TORCHTITAN), split=True)
    assert counter.peak / (tokens * vocabulary) == pytest.approx(told, rel=0.02)


def test_logits_given_up_behind_their_cast_need_as_many_bytes_at_the_worst_moment() -> None:
    # MindSpeed-LLM's --mtp-mem-efficient-logits (mindspeed_llm/core/tensor_parallel/cross_entropy.py:9-12) is neutral.
    torch = pytest.importorskip("torch")
    from taylor.dryrun.torch_stage.counter import LiveCounter

    tokens, vocabulary = 64, 4096
    with LiveCounter() as counter:
        hidden = torch.zeros((tokens, 1), dtype=torch.bfloat16)
        head = torch.zeros((1, vocabulary), dtype=torch.bfloat16)
        logits = hidden @ head
        softmax = logits.float()
        del logits
        behind_cast = counter.total
        softmax.sub_(softmax.max(-1, keepdim=True)[0]).exp_()
        softmax.div_(softmax.sum(-1, keepdim=True))
        forward = counter.peak
        counter.peak = counter.total
        hidden_gradient = softmax.mul_(1 / tokens).bfloat16() @ head.t()
    assert hidden_gradient.shape == hidden.shape
    for most in (forward, counter.peak):
        assert most / (tokens * vocabulary) == pytest.approx(MEGATRON.statics.logits_bytes, rel=0.02)
    assert behind_cast / (tokens * vocabulary) == pytest.approx(4, rel=0.02)


# What a record says holds together. --------------------------------------------------------------------------


@each_framework
def test_every_schedule_of_a_record_exists_and_runs(framework: Framework) -> None:
    assert framework.interleaved_schedule in framework.schedules
    for name in framework.schedules:
        assert name in SCHEDULES
        interleaves = 1 if name in ("1f1b", "gpipe") else 2
        build_schedule(ScheduleSpec(name), 4, interleaves, 8)


@each_framework
def test_a_record_is_the_same_after_a_journey_as_json(framework: Framework) -> None:
    adapter = TypeAdapter(Framework)
    assert adapter.validate_json(adapter.dump_json(framework)) == framework


@pytest.mark.parametrize("framework", ALL_FRAMEWORKS.values(), ids=ALL_FRAMEWORKS)
def test_a_record_names_rules_that_exist_and_each_once(framework: Framework) -> None:
    known = {rule.name for rule in LEGALITY_RULES}
    assert set(framework.legality) <= known
    assert len(set(framework.legality)) == len(framework.legality)


@each_framework
def test_a_search_asks_the_rules_that_its_framework_names_and_no_other_framework_s(framework: Framework) -> None:
    asked = {rule.name for rule in select_rules(context_of(framework))}
    others = {name for other in FRAMEWORKS.values() for name in other.legality} - set(framework.legality)
    assert not asked & others
    # DeepSeek-V3 has latent attention, so key/value groups say nothing here, and neither Mamba nor linear attention; TP
    # splits Megatron's experts and not MindFormers'. The rest of these needs a file that says more.
    silent = {
        "ep-in-dp-tp",
        "ep-in-dp-tp-cp",
        "ep-holds-cp",
        "context-levels",
        "context-needs-flash",
        "heads-by-ulysses",
        "ulysses-in-context",
        "ring-of-two",
        "interleaving-without-overlap",
        "micro-batches-fill-zero-bubble",
        "mamba-by-tp-cp",
        "linear-heads-by-tp-cp",
    }
    if framework.states.usually_whole_experts:
        silent.add("ep-in-dp-cp")
    assert asked >= {name for name in framework.legality if not name.startswith("kv-groups")} - silent


def context_of(framework: Framework) -> SearchContext:
    """A search for DeepSeek-V3 under a framework's rules."""
    return SearchContext.settle(job(rules=TrainingRules(framework)), DEVICE, SearchOptions())


def test_a_user_s_rule_is_asked_by_the_name_of_its_framework() -> None:
    mine = Rule("even-tp", "tp is even", lambda table, context: table.tp % 2 == 0, frameworks=("megatron",))
    for framework in FRAMEWORKS.values():
        asked = select_rules(context_of(framework), user_rules=[mine])
        assert (mine in asked) == (framework is MEGATRON)
    (line,) = [line for line in list_rules([mine]).splitlines() if line.startswith("even-tp")]
    assert "megatron" in line


# Nothing else knows a name. ----------------------------------------------------------------------------------

RECORDS = {"MINDFORMERS", "MEGATRON", "TORCHTITAN", "PADDLENLP"}


def knows_frameworks(path: Path) -> bool:
    """Whether a file may name frameworks: the records' own, the launchers' table, and those of a launcher's folder."""
    if path in (Path("register/frameworks.py"), Path("register/trainers.py"), Path("parsers/registry.py")):
        return True
    return path.parts[0] == "parsers" and path.parts[1] in {launcher.name for launcher in LAUNCHERS}


def product_files() -> list[Path]:
    """Every Python file that is installed, below the checkout."""
    packages = [path.parent for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests"]
    assert {"register", "cost_model", "parsers", "workflows"} <= {package.name for package in packages}
    return [path.relative_to(ROOT) for package in packages for path in sorted(package.rglob("*.py"))]


def mentions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, what) of every framework's name and every record in a file's code; docstrings are no code."""
    documentation = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in documentation and node.value in FRAMEWORKS:
            yield node.lineno, repr(node.value)
        elif isinstance(node, ast.Name) and node.id in RECORDS:
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and node.attr in RECORDS:
            yield node.lineno, node.attr
        elif isinstance(node, ast.Compare) and any(
            isinstance(op, ast.Eq | ast.NotEq | ast.Is | ast.IsNot) for op in node.ops
        ):
            for side in (node.left, *node.comparators):
                if ast.unparse(side).endswith((".framework", ".framework.name")):
                    yield node.lineno, ast.unparse(node)


@pytest.mark.slow
def test_no_code_but_the_records_and_the_launchers_names_a_framework() -> None:
    found = [
        f"{path}:{line}: {what}"
        for path in product_files()
        if not knows_frameworks(path)
        for line, what in mentions(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        'if job.format == "megatron": pass',
        'BYTES = {"torchtitan": 14}',
        "if rules.framework == MEGATRON: pass",
        "if rules.framework is other.framework: pass",
        "if rules.framework.name != name: pass",
        "from taylor.register import frameworks\nx = frameworks.MINDFORMERS",
    ],
)
def test_a_name_or_a_comparison_of_a_framework_is_seen(code: str) -> None:
    assert list(mentions(ast.parse(code)))


def test_a_name_in_a_docstring_is_none() -> None:
    assert not list(mentions(ast.parse('"""megatron"""\nx = 1\n"""torchtitan"""')))
