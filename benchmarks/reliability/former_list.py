"""Faults that were found once, each with the present code, the code with the fault, and the tests that cover it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Former:
    """A fault, its code, and the tests that cover it.

    Parameters
    ----------
    fault : str
        The fault.
    file, old, new : str
        The present code, and the code with the fault.
    tests : tuple of str
        As pytest takes them.
    """

    fault: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


_LEGAL = "tests/nd_search/test_legality.py"
_REPORT = (
    "tests/serve/test_serve.py::test_a_report_opens_by_a_link_of_its_own_and_reaches_neither_the_page_nor_the_network"
)
_SIZE = "tests/parsers/test_hostile_size.py"
_TIME = f"{_SIZE}::test_the_time_to_read_a_configuration_grows_with_its_length_and_no_faster"
_DOCTOR = (
    "tests/packaging/test_hostile_folder.py::"
    "test_neither_pyomo_s_finder_nor_the_path_lets_the_doctor_run_a_program_of_the_folder"
)
_AGAIN = f"{_SIZE}::test_the_time_of_a_second_shell_grows_with_the_length_of_its_text_and_no_faster"
_FORMULAS = "tests/cost_model/test_outside_formulas.py"
FORMER = (
    Former(
        "--noop-layers does not count among the positions that decide a layer's kind", "parsers/megatron/kinds.py",
        "return frozenset(flags.integers(NOOPS, high=layer_positions(flags) - 1) or [])", "return frozenset()",
        ("tests/parsers/megatron/test_launched.py",),
    ),
    Former(
        "a plan's selective recompute is not charged unless it is searched", "workflows/statement/problem.py",
        "unsearched = (SELECT,) if own and not searched else ()", "unsearched = ()",
        ("tests/workflows/test_evaluate_file.py::"
         "test_a_plan_is_charged_for_selective_recompute_whether_or_not_it_is_searched",),
    ),
    Former(
        "Megatron's attention keeps its scores where no flag says otherwise", "parsers/megatron/read.py",
        'usual = "local" if is_mindspeed(flags) or _implementation(flags) == "local" else "auto"', 'usual = "local"',
        ("tests/parsers/megatron/test_scripts.py::test_attention_keeps_its_scores_only_where_its_implementation_does",),
    ),
    Former(
        "MindFormers keeps an fp32 master of bf16 parameters", "cost_model/job/strategy.py",
        "return self.param_bytes >= states.master_bytes or not states.follows_weight_type", "return True",
        ("tests/cost_model/test_memory.py",),
    ),
    Former(
        "only --swiglu makes the MLP a gated one", "parsers/megatron/model.py",
        '_GATES = ("swiglu", "quick-geglu", "geglu", "gelu-tanh")', '_GATES = ("swiglu",)',
        ("tests/parsers/megatron/test_model.py", "tests/parsers/megatron/test_scripts.py"),
    ),
    Former(
        "seqpipe gives the micro-batches left over to its first round", "pipeline/traits.py",
        "remainder=DEALT", "remainder=TO_FIRST", ("tests/pipeline/test_seqpipe.py",),
    ),
    Former(
        "MindSpore's zero_bubble_v is offered with as many micro-batches as stages", "pipeline/traits.py",
        '"zero_bubble_v": replace(_V_SHAPE, least_micro_batches=_up_and_down)',
        '"zero_bubble_v": replace(_V_SHAPE, least_micro_batches=lambda stages: stages)',
        ("tests/pipeline/test_published_orders.py::"
         "test_with_too_few_micro_batches_mindspore_fails_and_so_does_the_order",),
    ),
    Former(
        "interleaving's low-memory order is taken unless the file says otherwise", "pipeline/schedule.py",
        "low_memory: bool = False", "low_memory: bool = True",
        ("tests/pipeline/test_schedules.py", "tests/workflows/test_schedules.py"),
    ),
    Former(
        "interleaving on two stages is let through with --no-overlap-p2p-communication", "nd_search/legality.py",
        "lambda t, c: (t.vpp == 1) | (t.pp > 2)", "lambda t, c: (t.vpp == 1) | (t.pp > 1)", (_LEGAL,),
    ),
    Former(
        "experts under TP are let through without sequence parallelism", "register/frameworks.py",
        '        "moe-sp-with-tp",\n        "sequence-by-2cp-tp",\n', '        "sequence-by-2cp-tp",\n',
        ("tests/nd_search/test_legality.py",),
    ),
    Former(
        "context parallelism without flash attention is let through under MindFormers", "register/frameworks.py",
        '        "context-needs-flash",\n', "", ("tests/nd_search/test_legality.py",),
    ),
    Former(
        "an environment file of the working folder can name the interpreter", "dryrun/launch.py",
        '    rf"{INTERPRETER}|PATH|PYTHON\\w*|', '    rf"nothing|PATHS|', ("tests/dryrun/test_environment_file.py",),
    ),
    Former(
        "the head of a V shape is counted on the last stage", "pipeline/schedule.py",
        "return 0 if self.v_shape else stages - 1", "return stages - 1",
        ("tests/pipeline/test_schedules.py",),
    ),
    # Step 12, one after another: what its list names and a line of today can bring back.
    Former(
        "MindFormers' experts are never split over model_parallel", "parsers/mindformers/read.py",
        'return moe.integer("expert_model_parallel", default=None) != 1', "return False",
        ("tests/parsers/mindformers/test_read.py",),
    ),
    Former(
        "EP that does not divide DP x CP is let through under MindFormers", "register/frameworks.py",
        '        "ep-in-dp-tp-cp",\n        "ep-in-dp-cp",\n        "moe-sp',
        '        "ep-in-dp-tp-cp",\n        "moe-sp', (_LEGAL,),
    ),
    Former(
        "keys that a MindFormers class fills from its defaults are missing", "parsers/mindformers/model_section.py",
        "    return dict(found)", "    return {}", ("tests/parsers/mindformers/test_read.py",),
    ),
    Former(
        "8.0 is no whole number", "parsers/text/fields.py",
        "if isinstance(value, float) and value.is_integer():", "if False:", ("tests/parsers/mindformers/test_read.py",),
    ),
    Former(
        "--first-k-dense-replace -1 is refused", "parsers/megatron/kinds.py",
        "default=0, low=-1, high=MAX_LAYERS))", "default=0, low=0, high=MAX_LAYERS))",
        ("tests/parsers/megatron/test_launched.py",),
    ),
    Former(
        'quotes in ${NAME:-"1"} stay', "parsers/text/shell_expansion.py",
        'words = self._word(split=False, stop="")', "pass", ("tests/parsers/text/test_shell_branches.py",),
    ),
    Former(
        "branches of an if that agree settle nothing", "parsers/text/shell_conditions.py",
        "if len(given) == len(after) and all(value.texts() == last.texts() for value in given):", "if False:",
        ("tests/parsers/text/test_shell_branches.py",),
    ),
    Former(
        "a GPU launcher's file is judged on an Ascend 910B", "parsers/megatron/launcher.py",
        'UsualDevice("h100-80g", "Megatron files")', 'UsualDevice("ascend-910b", "Megatron files")',
        ("tests/workflows/test_devices.py",),
    ),
    Former(
        "ratios are the older tool's unless asked for", "workflows/statement/options.py",
        "    fixed: bool = False", "    fixed: bool = True", ("tests/workflows/test_time_ratios.py",),
    ),
    Former(
        "registered models do not reach TOML files", "parsers/torchtitan/read.py",
        "    if key in known:", "    if False:", ("tests/parsers/torchtitan/test_files.py",),
    ),
    Former(
        "a counted embedding takes no layer's place", "parsers/megatron/own_plan.py",
        "    slots[0] -= extra_first\n", "",
        ("tests/parsers/megatron/test_scripts.py", "tests/parsers/megatron/test_model.py"),
    ),
    Former(
        "what the launcher would not start is planned all the same", "workflows/statement/schedules.py",
        "for misfit in config.misfits:", "for misfit in ():",
        ("tests/parsers/megatron/test_layouts.py",),
    ),
    Former(
        "EP beyond DP x CP is pruned although experts are whole", "nd_search/legality.py",
        "lambda t, c: (t.dp * t.tp * t.cp) % t.ep == 0", "lambda t, c: (t.dp * t.cp) % t.ep == 0", (_LEGAL,),
    ),
    Former(
        "fewer micro-batches than stages are pruned under 1F1B", "pipeline/traits.py",
        "least_micro_batches: Callable[[Any], Any] = lambda stages: 1",
        "least_micro_batches: Callable[[Any], Any] = lambda stages: stages",
        (_LEGAL, "tests/pipeline/test_schedules.py"),
    ),
    Former(
        "Ulysses over more ranks than key-value heads is let through under MindFormers", "register/frameworks.py",
        '        "context-needs-flash",\n        "heads-by-ulysses",\n        "kv-groups-by-ulysses",\n',
        '        "context-needs-flash",\n        "heads-by-ulysses",\n',
        (_LEGAL,),
    ),
    Former(
        "expert meshes of no rank are let through under torchtitan", "register/frameworks.py",
        '        "ep-in-shards",\n', "", (_LEGAL,),
    ),
    Former(
        "torch's interleaving is let through with any number of micro-batches", "register/frameworks.py",
        '        "micro-batches-in-even-rounds",\n', "", (_LEGAL,),
    ),
    Former(
        "flags without effect are taken in silence", "taylor/command_lines/arguments.py",
        "    if idle:\n", "    if idle and not flags:\n", ("tests/command_lines/test_without_effect.py",),
    ),
    Former(
        "a small packed trace is unpacked without measure", "parsers/profiles/json_stream.py",
        "min(MAX_TRACE_BYTES, FREE_BYTES + MAX_EXPANSION * file.stat().st_size)", "MAX_TRACE_BYTES",
        ("tests/parsers/profiles/test_streams.py",),
    ),
    Former(
        "Ctrl-C writes the plan so far into the user's file", "workflows/solving/interrupted.py",
        "planned.plan, output=copy)", "planned.plan, output=config.path)", ("tests/workflows/test_interrupted.py",),
    ),
    Former(
        "Ctrl-C in a solve exits with 0", "base/errors.py",
        "EXIT_INTERRUPTED = 130", "EXIT_INTERRUPTED = 0", ("tests/workflows/test_interrupted.py", "tests/base"),
    ),
    Former(
        "a killed tool's workers stay for good", "pipeline_solver/tree/worker_pool.py",
        "    end_with_parent(coordinator)\n", "",
        ("tests/base/test_orphans.py",),
    ),
    Former(
        "--explain leaves layers of a chunk without a stage", "cost_model/memory/best_case.py",
        "while capacity.sum() < search.layers:", "while capacity.sum() < 0:", ("tests/cost_model/test_best_case.py",),
    ),
    Former(
        "data_parallel_shard_degree -1 on unknown ranks turns FSDP off", "parsers/torchtitan/read.py",
        "return strategy, written == -1 or strategy.op > 1", "return strategy, strategy.op > 1",
        ("tests/parsers/torchtitan/test_files.py",),
    ),
    Former(
        "micro_batch_interleave_num changes nothing", "parsers/mindformers/read.py",
        ' * _micro_batch_interleave(top)', "", ("tests/parsers/mindformers/test_read.py",),
    ),
    Former(
        "--gbs leaves the old micro_batch_num in the file that is written", "parsers/mindformers/write.py",
        "_want_micro_batches(wanted, source, current, plan.stages, micro_batches)", "pass",
        ("tests/parsers/mindformers/test_write.py",),
    ),
    Former(
        "a check of which every dry-run crashed passes", "workflows/solving/memory_check.py",
        "    if result.says_nothing:\n        raise _unchecked(result)\n", "",
        ("tests/dryrun/test_check.py::"
         "test_a_check_whose_every_dry_run_crashed_passes_nothing_and_ends_with_code_5",),
    ),
    # What the second campaign itself found.
    Former(
        "the last clause of a case is taken, whatever its subject", "parsers/text/shell_conditions.py",
        "if subject.unknown or pattern.unknown or", "if True or", ("tests/parsers/text/test_shell_branches.py",),
    ),
    Former(
        "torchtitan's every N-th layer is counted through the whole model", "parsers/torchtitan/read.py",
        "ends = [list(accumulate(column)) for column in zip(*chunk_sizes, strict=True)]",
        "ends = [[sum(map(sum, chunk_sizes[:v])) + sum(chunk_sizes[v][: s + 1]) for v in range(len(chunk_sizes))] "
        "for s in range(len(chunk_sizes[0]))]",
        ("tests/parsers/torchtitan/test_files.py",),
    ),
    Former(
        "a layout beside another number of chunks ends with a traceback", "parsers/megatron/own_plan.py",
        "    if len(counts) != chunks:\n", "    if False:\n", ("tests/parsers/megatron/test_layouts.py",),
    ),
    # Mutants that once survived, by the tests written for them.
    Former(
        "a rank's experts read the weights of all", "cost_model/time/expert_products.py",
        "local = moe.n_experts / degrees.ep", "local = moe.n_experts * degrees.ep", (_FORMULAS,),
    ),
    Former(
        "context ranks get latent attention's keys alone", "cost_model/time/step.py",
        "(attention.qk_width + attention.v_width) / ways",
        "(attention.qk_width - attention.v_width) / ways", (_FORMULAS,),
    ),
    Former(
        "learned positions are split over TP", "cost_model/memory/statics.py",
        "replicated=table - split + positions", "replicated=table - split - positions", (_FORMULAS,),
    ),
    Former(
        "what the last LP leaves out may be the plan that reaches its bound", "pipeline_solver/bounds/generation.py",
        "self.last.bound + 1e-6 * abs(step_time)", "self.last.bound - 1e-6 * abs(step_time)",
        ("tests/pipeline_solver/test_stage_pricing.py",),
    ),
    Former(
        "lower bounds are missing from the model's file", "pipeline_solver/milp/linear_form.py",
        "elif lower or form.integer[index]:", "elif lower and form.integer[index]:",
        ("tests/pipeline_solver/test_model_files.py::test_bounds_of_columns_and_rows_are_those_that_another_reader_finds",),
    ),
    Former(
        "two machine folders of one number are one machine", "parsers/tables/worker_log.py",
        "if times > 1 or number is None", "if times > 2 or number is None",
        ("tests/parsers/tables/test_worker_log.py",),
    ),
    # Reported from outside to the third campaign.
    Former(
        "degrees of a layer-wise space are those that do not divide the ranks", "layerwise/space.py",
        "if ranks % n == 0 and", "if ranks % n != 0 and", ("tests/layerwise/test_space.py",),
    ),
    Former(
        "ranks of an end are those that do not divide them", "layerwise/space.py",
        "if number % n == 0)", "if number % n != 0)", ("tests/layerwise/test_space.py",),
    ),
    Former(
        "without its MTP modules a model has the parameters of these alone", "cost_model/job/parameters.py",
        "if kind != MTP or with_mtp", "if kind == MTP or with_mtp", ("tests/cost_model",),
    ),
    Former(
        "the layers of the best case are the MTP layers", "cost_model/memory/best_case.py",
        "if run != MTP]", "if run == MTP]", ("tests/cost_model/test_best_case.py",),
    ),
    Former(
        "models of a Galvatron folder are whole where their profiles are missing", "parsers/galvatron/folder.py",
        "if each.computation is not None and each.memory is not None",
        "if each.computation is None or each.memory is None",
        ("tests/parsers/galvatron",),
    ),
    Former(
        "a child process imports from the working folder", "base/isolated.py",
        '"-I", "-u", "-c", _START', '"-u", "-c", _START',
        ("tests/packaging/test_hostile_folder.py::"
         "test_a_module_runs_in_a_process_that_imports_nothing_from_its_folder",),
    ),
    Former(
        "a question within its limits takes gigabytes", "workflows/statement/schedules.py",
        "    if strategy.micro_batches * each <= MOST_PASSES:", "    if True:",
        ("tests/workflows/test_bounded_work.py",),
    ),
    # The page under strain.
    Former(
        "a connection without a header stays open", "serve/connections.py",
        "call_later(HEADER_SECONDS,", "call_later(1e6,",
        ("tests/serve/test_strain.py::test_a_connection_without_a_header_is_closed",),
    ),
    Former(
        "a connection that is idle after an answer stays open", "serve/connections.py",
        "        self._since = self.loop.time()\n        self._wait_for_header()\n\n    def connection_lost",
        "        self._since = self.loop.time()\n\n    def connection_lost",
        ("tests/serve/test_strain.py::test_a_connection_that_stays_idle_after_an_answer_is_closed",),
    ),
    Former(
        "an answer that takes long is cut off", "serve/connections.py",
        "        if not self.is_idle:\n            self._end_wait()\n", "",
        ("tests/serve/test_strain.py::test_an_answer_that_takes_longer_than_a_header_may_is_not_cut_off",),
    ),
    Former(
        "any number of idle connections stays open", "serve/connections.py",
        "[: max(0, excess)]", "[:0]",
        ("tests/serve/test_strain.py::test_of_idle_connections_beyond_the_limit_the_oldest_are_closed",),
    ),
    Former(
        "the server waits for answers that never end", "serve/connections.py",
        "        timeout_graceful_shutdown=STOP_SECONDS,\n", "",
        ("tests/serve/test_strain.py::test_the_server_ends_although_an_answer_never_does",),
    ),
    Former(
        "SIGTERM leaves the folder of the page's jobs", "taylor/command_lines/serve.py",
        "    signal.signal(signal.SIGTERM, _end)", "    signal.signal(signal.SIGTERM, signal.SIG_DFL)",
        ("tests/serve/test_strain.py::"
         "test_idle_connections_of_others_keep_nobody_waiting_and_the_end_removes_the_folder",),
    ),
    Former(
        "a client that left is a traceback in the log", "serve/app.py",
        "            except ClientDisconnect:", "            except ZeroDivisionError:",
        ("tests/serve/test_strain.py::"
         "test_idle_connections_of_others_keep_nobody_waiting_and_the_end_removes_the_folder",),
    ),
    Former(
        "a body that does not come is waited for", "serve/app.py",
        "await asyncio.wait_for(_whole_body(request, most), BODY_SECONDS)", "await _whole_body(request, most)",
        ("tests/serve/test_strain.py::test_a_body_that_does_not_come_is_not_waited_for",),
    ),
    Former(
        "a report runs in the origin of the page", "serve/app.py",
        '"sandbox allow-scripts', '"sandbox allow-same-origin allow-scripts', (_REPORT,),
    ),
    Former("answers of the page may be stored", "serve/app.py", '"Cache-Control": "no-store", ', "", (_REPORT,)),
    Former(
        "links of reports contain the token", "serve/app.py",
        "/{page.ticket_of(name, role)}", "/{page.token}", (_REPORT,),
    ),
    # Side files, clusters, interrupts.
    Former(
        "a model file that nobody requested costs the plan", "workflows/solving/solve_file.py",
        "        except WriteError as error:\n            log.warning(\"%s: no model file",
        "        except ZeroDivisionError as error:\n            log.warning(\"%s: no model file",
        ("tests/workflows/test_outputs.py::test_a_model_file_that_fails_costs_no_plan",),
    ),
    Former(
        "a requested file that is missing is a success", "workflows/showing/planned_outputs.py",
        "    if unwritten:\n        raise WriteError", "    if False:\n        raise WriteError",
        ("tests/workflows/test_outputs.py::test_a_requested_file_that_is_missing_is_no_success",),
    ),
    Former(
        "a dead scheduler is a traceback", "workflows/running/process_pool.py",
        "class ClusterGone(OutsideProgramError):", "class ClusterGone(RuntimeError):",
        ("tests/workflows/test_cluster.py::"
         "test_a_scheduler_that_dies_ends_the_work_with_code_5_and_keeps_what_was_done",),
    ),
    Former(
        "a local cluster that does not start is the user's slip", "workflows/running/cluster.py",
        "            if address.kind:\n                what =", "            if not address:\n                what =",
        ("tests/workflows/test_cluster.py::test_a_local_cluster_that_does_not_start_is_no_slip_of_the_users",),
    ),
    Former(
        "Ctrl-C in a refinement exits with 0", "taylor/command_lines/parallel_tool.py",
        "    if refinement.interrupted:\n", "    if False:\n",
        ("tests/workflows/test_layerwise_refine.py::"
         "test_interrupting_a_refinement_is_no_success_and_keeps_what_is_done",),
    ),
    # Stored data and readers.
    Former(
        "one damaged row hides all rows of a store", "base/stored_rows.py",
        "        except InputError as error:\n            bad += 1",
        "        except ZeroDivisionError as error:\n            bad += 1",
        ("tests/workflows/test_history.py::test_a_damaged_cell_is_named_and_hides_no_other_row",),
    ),
    Former(
        "samples of an operator may be any JSON", "blackbox/operator_base.py",
        "    if not all(type(each) is int and 0 < each < MOST_NS for each in found):", "    if False:",
        ("tests/blackbox/test_operators.py::test_a_damaged_row_of_a_base_is_named_and_hides_no_other",),
    ),
    Former(
        "what a store contains moves the terminal", "base/console.py",
        "    return text.translate(_CONTROLS)", "    return text",
        ("tests/workflows/test_history.py::test_what_a_store_holds_moves_no_terminal",
         "tests/blackbox/test_operators.py::test_what_a_base_holds_moves_no_terminal"),
    ),
    Former(
        "a locked store delays an evaluation by 31 s", "workflows/measuring/history.py",
        "WAIT_SECONDS = 2.0", "WAIT_SECONDS = 30.0",
        ("tests/workflows/test_history.py::test_a_locked_store_delays_no_answer",),
    ),
    Former(
        "every user of the machine reads the store", "base/database.py", "OWNER_ALONE = 0o600", "OWNER_ALONE = 0o644",
        ("tests/workflows/test_history.py::test_only_its_owner_reads_a_new_store",),
    ),
    Former(
        "numbers of any length are computed from YAML", "base/shipped.py",
        "    if len(text) > MOST_DIGITS:", "    if False:", ("tests/parsers/text/test_yaml_scalars.py",),
    ),
    Former(
        "a number in base 60 that is none is a traceback", "base/shipped.py",
        "    except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError):",
        "    except ZeroDivisionError:",
        ("tests/parsers/text/test_yaml_scalars.py",),
    ),
    Former(
        "text that a second shell reads takes time that grows with its square", "parsers/text/shell_words.py",
        "            current = [] if current is None else current\n            current.append(char)\n",
        "            current = [*(current or ()), char]\n",
        (f"{_AGAIN}[letters]",),
    ),
    Former(
        "a deep file is a traceback", "parsers/read.py",
        "    except RecursionError:\n", "    except ZeroDivisionError:\n",
        (f"{_SIZE}::test_whatever_a_configuration_repeats_it_is_read_or_refused_in_words[run.sh-negations]",),
    ),
    Former(
        "a dotted name of TOML takes time that grows with its square", "parsers/text/toml_edit.py",
        "        if _DOTS.search(text):\n", "        if False:\n",
        (f"{_TIME}[run.toml-dots of a key]",),
    ),
    Former(
        "a dimension of 5,000 digits is a traceback", "parsers/profiles/operators.py",
        "\\d{1,16}", "\\d{1,}", ("tests/blackbox/test_operators.py::test_shapes_are_read_as_the_profiler_writes_them",),
    ),
    Former(
        "backslashes that a second shell reads take time that grows with their square", "parsers/text/shell_words.py",
        "            current += [char for char in (next(chars, None),) if char is not None]\n",
        "            current = current + [char for char in (next(chars, None),) if char is not None]\n",
        (f"{_AGAIN}[backslashes]",),
    ),
    Former(
        "a TOML file of any number of lines is read for every copy", "parsers/text/toml_edit.py",
        "        if text.count(\"\\n\") >= MAX_LINES:", "        if False:",
        (f"{_SIZE}::test_a_configuration_of_more_lines_than_any_has_is_refused[toml]",),
    ),
    # What the second readers of trainers' files and enumerations found.
    Former(
        "axolotl's batch_size counts where the accumulation is missing", "parsers/axolotl/start_rules.py",
        "    if ACCUMULATION not in stated:\n        return 1\n", "",
        ("tests/parsers/trainer/test_jobs.py::"
         "test_axolotl_s_batch_states_the_accumulation_where_its_key_is_empty",),
    ),
    Former(
        "axolotl's default of bf16 is missed", "parsers/axolotl/read.py",
        '"bf16" not in source.data or _is_on(fields, "bf16")', '_is_on(fields, "bf16")',
        ("tests/parsers/trainer/test_jobs.py::test_axolotl_trains_in_bf16_unless_the_file_says_otherwise",),
    ),
    Former(
        "a reward model's cards train the policy on one node", "parsers/nemo_rl/job.py",
        '            each -= self._of_rewards("gpus_per_node")\n', "            pass\n",
        ("tests/parsers/nemo_rl/test_files.py::test_ranks_of_a_reward_model_do_not_train",),
    ),
    Former(
        "a split keeps the data parallelism of the file", "workflows/rl/split.py",
        'names = ("dp", *(name for name in SEARCHED if name in stated))',
        'names = tuple(name for name in ("dp", *SEARCHED) if name in stated)',
        ("tests/workflows/test_rl.py::test_data_parallelism_takes_the_cards_that_other_degrees_leave",),
    ),
    Former(
        "memory that is given back late is counted in the allocations of other runs", "blackbox/block_memory.py",
        "        return self._later(place, life.end(run).late, run)\n",
        "        return place + life.end(run).late\n",
        ("tests/blackbox/test_turns_and_orders.py::"
         "test_a_tensor_that_is_given_back_late_sees_as_many_allocations_where_others_are_missing",),
    ),
    Former(
        "a sizing whose time ran out says that no number of devices has a strategy", "workflows/searching/size.py",
        "    if unsolved:\n", "    if False:\n",
        ("tests/workflows/test_size.py::test_numbers_that_the_time_left_unsolved_are_named",),
    ),
    Former(
        "the choices of a chunk are listed beyond the time limit", "pipeline_solver/columns/chunk_types.py",
        "            stopper.check()\n", "",
        ("tests/pipeline_solver/test_layer_choices.py::"
         "test_choices_of_chunks_are_listed_no_longer_than_the_time_limit_allows",),
    ),
    # What the hostile surroundings of all commands found.
    Former(
        "the doctor runs a program of the working folder", "workflows/showing/doctor.py",
        "    isolate_programs()\n", "", (_DOCTOR,),
    ),
    Former(
        "an empty entry of PATH makes a program of the working folder a solver", "base/console.py",
        "    isolate_path()\n", "", (_DOCTOR,),
    ),
)  # fmt: skip
