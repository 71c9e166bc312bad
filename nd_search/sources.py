"""Checks of the frameworks that the legality rules represent.

Each entry names repository, release, file and line, and in brackets the releases that have the check.
"""

SOURCES = {
    "world-size": (
        "Megatron-LM core_v0.16.0 megatron/core/parallel_state.py:740 (0.4 to 0.19); MindFormers r1.5.0 "
        "mindformers/tools/check_rules.py:158 (1.3 to master); torchtitan v0.2.2 "
        "torchtitan/distributed/parallel_dims.py:53 (0.1 to main); "
        "nanotron 2411b022 src/nanotron/parallel/context.py:26; OLMo-core fa6c5014 "
        "src/olmo_core/distributed/parallel/__init__.py:167-186; gpt-neox ea7aefd8 "
        "megatron/neox_arguments/arguments.py:927; NeMo-RL 7ea279ab nemo_rl/models/policy/lm_policy.py:233"
    ),
    "heads-by-tp": (
        "Megatron-LM core_v0.16.0 megatron/core/transformer/transformer_config.py:924 (0.4 to 0.19); "
        "MindFormers r1.5.0 mindformers/models/llama/llama_transformer.py:183, r1.7.0 "
        "mindformers/parallel_core/transformer_config.py:450 (1.3 to master); torchtitan main "
        "torchtitan/models/common/decoder.py:190; "
        "gpt-neox ea7aefd8 megatron/model/transformer.py:306; nanotron 2411b022 src/nanotron/config/config.py:536; "
        "Automodel 36044ad3 nemo_automodel/components/distributed/parallelizer.py:1609, 1697"
    ),
    "kv-groups-by-tp": (
        "MindFormers r1.5.0 mindformers/models/llama/llama_transformer.py:190, r1.7.0 "
        "mindformers/parallel_core/training_graph/transformer/attention.py:159 (1.3 to master); torchtitan "
        "main torchtitan/models/common/decoder.py:195; "
        "gpt-neox ea7aefd8 megatron/neox_arguments/arguments.py:1146; nanotron 2411b022 "
        "src/nanotron/models/llama.py:352, src/nanotron/config/config.py:542; Automodel 36044ad3 "
        "nemo_automodel/components/distributed/parallelizer.py:1623, 1694; transformers v4.57.1 "
        "src/transformers/models/llama/modeling_llama.py:237 (whole heads of the columns that tp leaves); "
        "AReaL 4aef98d8 areal/engine/fsdp_utils/parallel.py:241"
    ),
    "kv-groups-or-copies": (
        "Megatron-LM core_v0.16.0 megatron/core/transformer/transformer_config.py:939 (0.16 to 0.19; until "
        "0.15 TP divides the groups, core_v0.15.3 :758), megatron/core/transformer/attention.py:1264 (the width)"
    ),
    "mamba-by-tp-cp": (
        "Megatron-LM core_v0.19.0 megatron/core/ssm/mamba_mixer.py:268 (0.8 to 0.19), "
        "megatron/core/ssm/mamba_context_parallel.py:107-128 (0.13 to 0.19)"
    ),
    "linear-heads-by-tp-cp": (
        "Megatron-LM core_v0.19.0 megatron/core/transformer/transformer_config.py:1375 (0.18 to 0.19)"
    ),
    "hidden-by-tp": (
        "MindFormers r1.5.0 mindformers/models/llama/llama_layer.py:453 (1.3 to master); "
        "gpt-neox ea7aefd8 megatron/model/transformer.py:302"
    ),
    "mtp-projection-by-tp": (
        "Megatron-LM core_v0.16.0 megatron/core/transformer/multi_token_prediction.py:651, "
        "megatron/core/tensor_parallel/layers.py:842 (0.12 to 0.19)"
    ),
    "ffn-by-tp": (
        "Megatron-LM core_v0.16.0 megatron/core/tensor_parallel/layers.py:842 (0.4 to 0.19); MindFormers "
        "r1.5.0 mindformers/models/llama/llama_layer.py:449 (1.3 to master); torchtitan v0.2.2 "
        "torchtitan/models/llama3/infra/parallelize.py:238 (columns of w1 and w3 and rows of w2, whose uneven parts "
        "torch's DTensor does not multiply); "
        "gpt-neox ea7aefd8 megatron/mpu/layers.py:429, 641; nanotron 2411b022 "
        "src/nanotron/parallel/tensor_parallel/nn.py:63, 128"
    ),
    "expert-ffn-by-tp": (
        "Megatron-LM core_v0.16.0 megatron/core/transformer/moe/experts.py:133 (0.7 to 0.16), core_v0.17.0 "
        "megatron/core/extensions/transformer_engine.py:1747 (0.17 to 0.19)"
    ),
    "vocab-by-tp": (
        "MindFormers r1.6.0 mindformers/parallel_core/training_graph/base_models/gpt/gpt_model.py:236, "
        "mindformers/parallel_core/training_graph/tensor_parallel/layers.py:255 (the head of core models, which "
        "MindSpore splits evenly; 1.6 to master; the old classes leave such a vocabulary whole, r1.5.0 "
        "mindformers/models/llama/llama.py:556)"
    ),
    "dense-without-ep": (
        "Megatron-LM core_v0.16.0 megatron/training/arguments.py:1026 (0.4 to 0.19); MindFormers r1.7.0 "
        "mindformers/parallel_core/transformer_config.py:495 (1.7 to master)"
    ),
    "experts-by-ep": (
        "Megatron-LM core_v0.16.0 megatron/training/arguments.py:1027 (0.4 to 0.19); MindFormers r1.5.0 "
        "mindformers/modules/transformer/moe.py:243 (1.3 to 1.6), r1.7.0 "
        "mindformers/parallel_core/training_graph/transformer/moe/moe_layer.py:56 (1.6 to master); "
        "torchtitan main torchtitan/models/common/decoder.py:204"
    ),
    "max-expert-parallel": "asked for on the command line",
    "ep-in-dp-tp": (
        "MindFormers r1.5.0 mindformers/modules/transformer/moev3.py:882 (models of the old classes, 1.5 to master)"
    ),
    "ep-in-dp-cp": (
        "Megatron-LM core_v0.16.0 megatron/core/parallel_state.py:792 (0.10 to 0.19; before, EP divides DP, "
        "core_v0.9.0 :536); MindFormers r1.5.0 mindformers/modules/transformer/moe.py:691 (batched experts of the old "
        "classes, 1.3 to master; :254, 1.3 to 1.6)"
    ),
    "ep-in-dp-tp-cp": (
        "Megatron-LM core_v0.16.0 megatron/core/parallel_state.py:792 with --expert-tensor-parallel-size 1 "
        "(0.10 to 0.19); MindFormers r1.6.0 "
        "mindformers/parallel_core/training_graph/transformer/moe/ffn.py:146 (core models; DP·TP from r1.7.0 "
        ":173 on); Automodel 36044ad3 nemo_automodel/components/distributed/mesh_utils.py:317"
    ),
    "ep-in-shards": "torchtitan v0.2.2 torchtitan/distributed/parallel_dims.py:138 and :154 (0.2 to main; main :187)",
    "ep-holds-cp": "torchtitan v0.2.0 torchtitan/distributed/parallel_dims.py:61 and :64 (July to December 2025)",
    "op-in-replicas": "the definition of op: a share of the replicas of a parameter",
    "op-holds-cp": (
        "torchtitan v0.2.2 torchtitan/distributed/parallel_dims.py:137 (0.1 to main); Automodel 36044ad3 "
        "nemo_automodel/components/distributed/mesh_utils.py:320-342"
    ),
    "plain-replicas-alone": "torchtitan v0.2.2 torchtitan/models/llama3/infra/parallelize.py:151 (0.1 to 0.2)",
    "op-needs-parallel-optimizer": "the definition of op: a share of the replicas of a parameter",
    "sp-needs-tp": (
        "MindFormers r1.7.0 mindformers/parallel_core/model_parallel_config.py:183 (1.7 to master); "
        "Megatron-LM core_v0.16.0 megatron/core/model_parallel_config.py:409 (0.4 to 0.19; the launcher "
        "disables it, megatron/training/arguments.py:907); torchtitan has it where TP is"
    ),
    "moe-sp-with-tp": (
        "Megatron-LM core_v0.16.0 megatron/core/transformer/moe/moe_layer.py:379 (0.7 to 0.19); "
        "MindSpeed-LLM 2.3.0 mindspeed_llm/core/transformer/moe/moe_layer.py:128 (2.2 to master); MindFormers r1.6.0 "
        "mindformers/tools/check_rules.py:146 (core models), r1.7.0 "
        "mindformers/parallel_core/training_graph/transformer/moe/moe_layer.py:124 (1.6 to master)"
    ),
    "sequence-by-cp-tp": (
        "MindFormers r1.5.0 mindformers/models/llama/llama_transformer.py:406 (MindSpore splits the sequence "
        "evenly; 1.3 to master); "
        "gpt-neox ea7aefd8 megatron/mpu/mappings.py:202"
    ),
    "sequence-by-2cp-tp": (
        "Megatron-LM core_v0.16.0 megatron/training/arguments.py:818, "
        "megatron/core/tensor_parallel/mappings.py:70 (0.6 to 0.19)"
    ),
    "sequence-by-2cp-tp-always": (
        "torchtitan v0.2.2 torchtitan/distributed/parallel_dims.py:365, "
        "torchtitan/models/llama3/infra/parallelize.py:69 (0.2; main leaves the 2 out where cp = 1, and tp without "
        "sequence parallel, torchtitan/trainer.py:299)"
    ),
    "context-needs-flash": (
        "MindFormers r1.5.0 mindformers/tools/check_rules.py:179, r1.7.0 "
        "mindformers/parallel_core/transformer_config.py:465 (1.3 to master)"
    ),
    "heads-by-ulysses": (
        "MindSpeed-LLM 2.3.0 mindspeed_llm/training/arguments.py:247 (1.0.0 to 2.3.0; later MindSpeed master "
        "mindspeed/features_manager/context_parallel/ulysses_context_parallel.py:30); PaddleNLP "
        "(paddle-galvatron b0bdd07) paddlenlp/transformers/llama/modeling.py:864; "
        "MindFormers master mindformers/parallel_core/training_graph/transformer/attention.py:171 (core models); "
        "verl b178a3cd verl/models/transformers/monkey_patch.py:333; "
        "ROLL 8eb27cc2 roll/distributed/strategy/fsdp2_strategy.py:924; "
        "AReaL 4aef98d8 areal/models/transformers/ulyssess_patch.py:165"
    ),
    "kv-groups-by-ulysses": (
        "MindSpeed-LLM 2.3.0 mindspeed_llm/training/arguments.py:255 (1.0.0 to 2.3.0); with --cp-comm-type a2a "
        "Megatron-LM core_v0.16.0 megatron/core/extensions/transformer_engine.py:1252, where TransformerEngine's "
        "attention asks it of heads and key/value heads (0.10 to 0.19); MindFormers r1.5.0 "
        "mindformers/tools/check_rules.py:141, mindformers/models/llama/llama_transformer.py:190 (1.3 to master); "
        "PaddleNLP (paddle-galvatron b0bdd07) paddlenlp/transformers/llama/modeling.py:863"
    ),
    "ulysses-in-context": (
        "MindSpeed-LLM 2.3.0 mindspeed_llm/training/arguments.py:304 (1.0.0 to 2.3.0; later MindSpeed master "
        "mindspeed/features_manager/context_parallel/context_parallel_feature.py:61); MindFormers r1.5.0 "
        "mindformers/modules/transformer/transformer.py:639 (1.3 to master)"
    ),
    "ring-of-two": (
        "MindSpeed-LLM 2.3.0 mindspeed_llm/training/arguments.py:305 (1.0.0 to 2.3.0; later MindSpeed master "
        "mindspeed/features_manager/context_parallel/context_parallel_feature.py:61)"
    ),
    "context-levels": "Megatron-LM core_v0.16.0 megatron/training/arguments.py:405 (0.10 to 0.19)",
    "layers-fill-chunks": (
        "Megatron-LM core_v0.16.0 megatron/training/arguments.py:543 (0.4 to 0.19); torchtitan v0.2.2 "
        "torchtitan/distributed/pipeline_parallel.py:269 (0.1 to main); elsewhere an empty chunk has nothing "
        "to run; "
        "OLMo-core fa6c5014 src/olmo_core/train/train_module/transformer/config.py:70"
    ),
    "vpp-needs-pipeline": (
        "Megatron-LM core_v0.16.0 megatron/training/arguments.py:575 (0.4 to 0.19); elsewhere the number of "
        "virtual stages has no effect without a pipeline"
    ),
    "interleaving-without-overlap": (
        "Megatron-LM core_v0.16.0 megatron/training/arguments.py:579 (0.7 to 0.19; until 0.6 pp > 2 always, "
        "core_v0.6.0 :241)"
    ),
    "zero-bubble-v-two-chunks": (
        "torch 2.13 torch/distributed/pipelining/schedules.py:3249 (2.6 to 2.13); MindSpore's and "
        "MindSpeed's have two by construction"
    ),
    "gpipe-one-chunk": "torchtitan v0.2.2 torchtitan/distributed/pipeline_parallel.py:96 (0.1 to main)",
    "pieces-fill-rounds": (
        "mindspore-ai/mindspore_test 71155665 mindspore/ccsrc/frontend/parallel/pipeline_transformer/"
        "seqpipe_scheduler.cc, SeqvppScheduler::ComputeCycleList; mindspore/python/mindspore/context.py, "
        "pipeline_scheduler (MindSpore 2.6 on)"
    ),
    "schedule-needs-pipeline": "the definition of the schedule",
    "batch-by-dp": (
        "Megatron-LM core_v0.16.0 megatron/core/num_microbatches_calculator.py:340 (0.4 to 0.19); torchtitan "
        "v0.2.2 torchtitan/train.py:203 (0.1 to main); MindFormers multiplies its own batch; "
        "gpt-neox ea7aefd8 megatron/neox_arguments/arguments.py:879; DeepSpeed edaa7221 "
        "deepspeed/runtime/config.py:937; OLMo-core fa6c5014 "
        "src/olmo_core/train/train_module/transformer/train_module.py:243; verl b178a3cd verl/utils/config.py:110"
    ),
    "micro-batches-fill-zero-bubble": (
        "MindSpore master mindspore/ccsrc/frontend/parallel/pipeline_transformer/zero_bubble_v.cc, ProcessStep4 "
        "(MindFormers 1.6 to master), MindFormers r1.7.0 mindformers/parallel_core/transformer_config.py:692 (core "
        "models, 1.7 to master, 167a50de :2518); MindSpeed 028de58c "
        "mindspeed/features_manager/pipeline_parallel/dualpipev_feature.py:47 (2.1.0_core_r0.12.1 to master); torch "
        "2.13 torch/distributed/pipelining/schedules.py:3439 (DualPipeV, 2.8 to 2.13)"
    ),
    "micro-batches-fill-interleaving": (
        "MindSpore master mindspore/ccsrc/frontend/parallel/pipeline_transformer/pipeline_scheduler.cc, "
        "InterleavedScheduler::Reorder and ::MemoryOptimizedReorder (MindFormers 1.3 to master)"
    ),
    "micro-batches-fill-1f1b": "torch 2.13 torch/distributed/pipelining/schedules.py:1020 (torchtitan 0.1 to main)",
    "micro-batches-fill-pipeline": (
        "Automodel 36044ad3 nemo_automodel/recipes/llm/train_ft.py:547, nemo_automodel/recipes/vlm/finetune.py:490 "
        "(of one local batch)"
    ),
    "micro-batches-in-rounds": (
        "Megatron-LM core_v0.16.0 megatron/core/pipeline_parallel/schedules.py:995 and :1007 (0.10 to 0.19; "
        "before, pp divides them, core_v0.9.0 :631); Paddle "
        "python/paddle/distributed/passes/pipeline_scheduler_pass/pipeline_vpp.py, `_create_job_list`"
    ),
    "micro-batches-in-even-rounds": (
        "torch 2.13 torch/distributed/pipelining/schedules.py:2937 (2.6 to 2.13; torchtitan 0.1 to main)"
    ),
    "kv-groups-or-copies-by-ulysses": (
        "verl b178a3cd verl/models/transformers/monkey_patch.py:336; "
        "ROLL 8eb27cc2 roll/distributed/strategy/fsdp2_strategy.py:927; "
        "AReaL 4aef98d8 areal/models/transformers/ulyssess_patch.py:170"
    ),
    "ep-is-shard": "OLMo-core fa6c5014 src/olmo_core/distributed/parallel/__init__.py:189-223",
    "tokens-by-tp": (
        "nanotron 2411b022 src/nanotron/parallel/tensor_parallel/distributed_differentiable_primitives.py:106"
    ),
    "context-without-sequence-parallel": "NeMo-RL 7ea279ab nemo_rl/models/automodel/setup.py:635",
    "gradients-whole-in-pipeline": "DeepSpeed edaa7221 deepspeed/runtime/pipe/engine.py:76",
    "untied-across-stages": "OLMo-core fa6c5014 src/olmo_core/train/train_module/transformer/config.py:98",
    "micro-batches-fill-warm-up": "nanotron 2411b022 src/nanotron/parallel/pipeline_parallel/engine.py:252",
}
"""By name of the rule; for a rule of Taylor's own, the facts that it follows from."""
