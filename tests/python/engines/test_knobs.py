"""Each field of the engines' configurations: it changes the namespace, or is known not to.

A field that an upgrade brings is in neither list: say whether it changes what bytes of KV mean.
"""

import copy
import dataclasses
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (make engines)")
pytest.importorskip("sglang", reason="SGLang is not installed (make engines)")

from sglang.srt.arg_groups.arg_utils import namespace_of as groups_of
from sglang.srt.server_args import ServerArgs
from vllm.config import ParallelConfig, SpeculativeConfig, VllmConfig
from vllm.config.multimodal import MultiModalConfig
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from kvring.sglang import settings
from kvring.vllm import options
from tests.python.engines.sglang_host import kv_pool, namespace_of
from tests.python.engines.vllm_engine import ROW_BYTES, make_config, tiny_model, whole_config

# Those that no list of fields has, and that change the namespace: by the model's own configuration,
# by the weights, or by what vLLM's OffloadingConfig has. test_vllm_identity.py and
# test_vllm_layouts.py have their tests.
VLLM_OTHERWISE: Final = """
    kv_transfer_config cache_config: block_size kv_cache_layout mamba_block_size
    prefix_match_unit hash_block_size model_config: model hf_config hf_text_config hf_overrides
    hf_config_path config_format seed max_model_len parallel_config: tensor_parallel_size
    pipeline_parallel_size prefill_context_parallel_size decode_context_parallel_size
    world_size speculative_config: model revision code_revision draft_model_config
"""

VLLM_SAME: Final = {
    "It is in vLLM's hashes, or decides which tokens there are.": """
        lora_config cache_config: prefix_caching_hash_algo model_config: enable_prompt_embeds
        tokenizer tokenizer_mode tokenizer_revision skip_tokenizer_init
        model_config.multimodal_config: language_model_only limit_per_prompt enable_mm_embeds
        media_io_kwargs mm_hasher_algorithm interleave_mm_strings allow_missing_mm_embeddings
    """,
    "It decides what may be asked, and what is answered from the same states.": """
        structured_outputs_config reasoning_config watermark_config aux_output_config model_config:
        allowed_local_media_path allowed_media_domains return_sampling_mask max_logprobs
        logprobs_mode use_fp64_gumbel served_model_name hf_token generation_config
        override_generation_config logits_processors io_processor_plugin pooler_config
        trust_remote_code allow_deprecated_quantization spec_target_max_model_len
        is_submodel_config word_embeddings_untied_by_checkpoint
    """,
    "It decides how fast the same values are computed, or how they are rounded.": """
        kernel_config compilation_config optimization_level performance_mode scheduler_config
        device_config attention_config: minimax_m3_msa_decode_backend flash_attn_version
        flash_attn_max_num_splits_for_cuda_graph tokenspeed_mla_min_split_kv
        tq_max_kv_splits_for_cuda_graph use_trtllm_attention mla_prefill_backend
        trtllm_ragged_backend indexer_sparse_logits indexer_tp_shard_min_rows
        minimax_m3_indexer_cp sparse_mla_force_mqa sparse_mla_prefill_workspace_factor
        flex_attn_block_m flex_attn_block_n flex_attn_q_block_size flex_attn_kv_block_size
        cache_config: kv_sharing_fast_prefill swa_bounded_replay replayssm_buffer_len
        mamba_config: enable_stochastic_rounding stochastic_rounding_philox_rounds ssu_algorithm
        model_config: enforce_eager enable_trace_replay disable_cascade_attn
        model_config.multimodal_config: mm_device_do_normalize mm_encoder_only mm_encoder_tp_mode
        mm_encoder_attn_backend mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin
    """,
    "It decides how much is kept while the engine runs, and where.": """
        offload_config engram_config attention_config: hisparse_config cache_config:
        user_specified_block_size gpu_memory_utilization is_attention_free num_gpu_blocks_override
        enable_prefix_caching prefix_cache_retention_interval mamba_cache_mode
        enable_mamba_shared_prefix_checkpoint num_gpu_blocks num_cpu_blocks
        simple_cpu_offload_num_blocks effective_attention_block_size kv_cache_size_tokens
        kv_cache_max_concurrency cache_hit_alignment_tokens kv_cache_memory_bytes
        kv_offloading_size kv_offloading_backend _block_size_resolved model_config:
        enable_sleep_mode sleep_preserve_parameter_names sleep_mode_backend
        sleep_mode_offload_cudagraph enable_nccl_comm_suspend enable_cumem_allocator
        renderer_num_workers model_config.multimodal_config: mm_processor_cache_gb
        mm_processor_cache_type mm_shm_cache_max_object_size_mb skip_mm_profiling mm_tensor_ipc
        mm_ipc_gpu_memory_gb
    """,
    "It follows from other fields, or the length of rows has it.": """
        quant_config cache_config: sliding_window mamba_page_size_padded skip_page_size_padded
    """,
    "It decides how files of weights are read, and from where.": """
        load_config: download_dir safetensors_load_strategy safetensors_prefetch_num_threads
        safetensors_prefetch_block_size device use_tqdm_on_load pt_load_map_location
    """,
    "Weights that change under a running engine are for an epoch.": """
        weight_transfer_config
    """,
    "It decides which processes and machines compute, not what.": """
        parallel_config: data_parallel_size data_parallel_size_local data_parallel_rank
        data_parallel_rank_local data_parallel_master_ip data_parallel_rpc_port dp_sync_interval
        data_parallel_master_port data_parallel_backend data_parallel_external_lb
        data_parallel_hybrid_lb is_moe_model enable_hc_sp enable_expert_parallel
        enable_batch_sharded_sampling enable_ep_weight_filter enable_eplb eplb_config
        expert_placement_strategy all2all_backend max_parallel_loading_workers
        disable_custom_all_reduce enable_shm_tensor_arena enable_elastic_ep elastic_ep_max_dp_size
        enable_dbo ubatch_size dbo_decode_token_threshold dbo_prefill_token_threshold
        disable_nccl_for_dp_synchronization ray_workers_use_nsight ray_runtime_env placement_group
        distributed_executor_backend worker_cls worker_extension_cls master_addr master_port
        node_rank nnodes numa_bind numa_bind_nodes numa_bind_cpus assigned_physical_gpu_ids
        distributed_timeout_seconds cpu_distributed_timeout_seconds rank
        _data_parallel_master_port_list _coord_store_port dcp_kv_cache_interleave_size
        dcp_comm_backend dcp_q_replicate _allow_auto_resolve_cp_interleave_size data_parallel_index
        _api_process_count _api_process_rank enable_fault_tolerance fault_tolerance_config
    """,
    "It decides which tokens a draft proposes, not its states.": """
        speculative_config: enforce_eager num_speculative_tokens draft_tensor_parallel_size
        tensor_parallel_size moe_backend attention_backend max_model_len
        index_share_for_mtp_iteration disable_padded_drafter_batch disable_eagle_block_drop
        disable_lookahead_block_hashes draft_lm_head_quantization use_local_argmax_reduction
        use_heterogeneous_vocab prompt_lookup_max prompt_lookup_min parallel_drafting
        target_model_config target_parallel_config num_speculative_tokens_per_batch_size
        draft_parallel_config suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests
        suffix_decoding_max_spec_factor suffix_decoding_min_token_prob rejection_sample_method
        synthetic_acceptance_rates synthetic_acceptance_length enable_adaptive_verification
        draft_sample_method dspark_draft_topk xpress_topc fly_window_size fly_entropy_threshold
        fly_entropy_top_k
    """,
    "It watches or names the engine, or moves KV elsewhere.": """
        observability_config logging_config profiler_config kv_events_config ec_transfer_config
        ec_manager_config instance_id watchdog_config shutdown_timeout
    """,
}

# By the pools, or SGLang's HiCacheStorageConfig: test_sglang_namespaces.py.
SGLANG_OTHERWISE: Final = """
    page_size tp_size pp_size attn_cp_size hicache_mem_layout enable_unified_memory
    enable_page_major_kv_layout c128_page_size served_model_name
"""

SGLANG_SAME: Final = {
    "It places, watches or speeds up processes: all of these groups.": """
        device.* observability.* exec.graph.* exec.overlap.* exec.offload.*
    """,
    "It decides which tokens there are, and what is answered of the same states.": """
        tokenizer_path tokenizer_mode tokenizer_backend tokenizer_worker_num detokenizer_worker_num
        skip_tokenizer_init host port fastapi_root_path smg_grpc_mode grpc_mode grpc_port
        grpc_worker_threads sidecar sidecar_args skip_server_warmup warmups enable_http2
        http2_max_concurrent_streams http2_initial_connection_window_size ssl_keyfile ssl_certfile
        ssl_ca_certs ssl_keyfile_password enable_ssl_refresh api_key admin_api_key chat_template
        trust_request_chat_template hf_chat_template_name completion_template enable_cache_report
        return_input_ids return_output_ids reasoning_parser default_chat_template_kwargs
        strip_thinking_cache enable_strict_thinking tool_call_parser tool_server sampling_defaults
        asr_max_buffer_seconds asr_max_concurrent_sessions preferred_sampling_params
        allow_auto_truncate stream_interval batch_notify_size stream_response_default_include_usage
        incremental_streaming_output enable_streaming_session constrained_json_whitespace_pattern
        constrained_json_disable_any_whitespace constrained_json_max_whitespace_cnt
        enable_dynamic_batch_tokenizer dynamic_batch_tokenizer_batch_size
        dynamic_batch_tokenizer_batch_timeout enable_tokenizer_batch_encode
        disable_tokenizer_batch_decode enable_response_store grpc_response_timeout_secs
        enable_http_worker_reuseport enable_custom_logit_processor enable_return_hidden_states
        return_hidden_states_mode enable_return_routed_experts enable_return_indexer_topk
        sampling_mask_max_tokens disable_outlines_disk_cache enable_mis
        enable_return_aux_hidden_states aux_hidden_state_capture return_aux_hidden_state_layer_ids
        enable_fp32_lm_head sampling_backend grammar_backend trust_remote_code context_length
        enable_watermark watermark_config watermark_key watermark_key_b watermark_context_window
        watermark_mixing_probability watermark_max_probability watermark_default_enabled
        watermark_enforce_all
    """,
    "It is in SGLang's hashes: adapters, and pictures as tokens.": """
        lora.* enable_multimodal mm_attention_backend enable_broadcast_mm_inputs_process
        enable_prefix_mm_cache mm_enable_dp_encoder mm_processor_worker_num mm_io_worker_num
        allowed_media_domains media_url_max_file_size_mb mm_preprocess_cache_size_mb
        trust_mm_content_hashes limit_mm_data_per_request enable_mm_global_cache
        image_processor_backend mm_global_cache_backend disable_fast_image_processor
        mm_feature_transport
    """,
    "It decides how files of weights are read, and from where, or what is written.": """
        modelopt_checkpoint_save_path modelopt_export_path startup_weight_load_mode
        custom_weight_loader weight_loader_disable_mmap weight_loader_prefetch_checkpoints
        weight_loader_prefetch_num_threads weight_loader_drop_cache_after_load
        remote_instance_weight_loader_seed_instance_ip
        remote_instance_weight_loader_seed_instance_service_port
        remote_instance_weight_loader_send_weights_group_ports
        remote_instance_weight_loader_backend
        remote_instance_weight_loader_start_seed_via_transfer_engine engine_info_bootstrap_port
        modelexpress_config download_dir model_checksum delete_ckpt_after_loading
        checkpoint_engine_wait_weights_before_ready weight_cache_mode weight_cache_socket
        weight_cache_timeout
    """,
    "It decides how fast the same values are computed, or how they are rounded.": """
        enable_lean_attention fp8_gemm_runner_backend fp4_gemm_runner_backend bf16_gemm_backend
        dsa_paged_mqa_logits_backend dsa_topk_backend disable_flashinfer_autotune
        flashinfer_autotune_skip_ops enable_layerwise_nvtx_marker enable_nccl_nvls enable_symm_mem
        triton_attention_reduce_in_fp32 triton_attention_num_kv_splits
        triton_attention_split_tile_size flashinfer_mla_disable_ragged enable_fused_qk_norm_rope
        enable_precise_embedding_interpolation enable_fused_moe_sum_all_reduce
        disable_custom_all_reduce enable_mscclpp enable_torch_symm_mem enable_scattered_sconv
        pre_warm_nccl boundary_reduction enable_flashinfer_allreduce_fusion
        enforce_disable_flashinfer_allreduce_fusion flashinfer_allreduce_fusion_backend
        enable_aiter_allreduce_fusion moe_a2a_backend deepep_v2_mode moe_runner_backend
        deepep_mode fuseep_mode ep_num_redundant_experts
        ep_dispatch_algorithm init_expert_location enable_eplb eplb_algorithm
        eplb_rebalance_num_iterations eplb_rebalance_layers_per_chunk
        eplb_min_rebalancing_utilization_threshold expert_distribution_recorder_mode
        expert_distribution_recorder_buffer_size expert_balancedness_report_mode deepep_config
        elastic_ep_backend enable_elastic_expert_backup mooncake_ib_device enable_waterfill
        ep_join_mode elastic_ep_scale_timeout disable_flashinfer_cutlass_moe_fp4_allgather
        disable_shared_experts_fusion enforce_shared_experts_fusion mamba_max_states_per_path
        enable_mamba_cache_stochastic_rounding mamba_cache_philox_rounds mamba_radix_cache_strategy
        uses_mamba_radix_cache mamba_track_interval int8_mamba_ckpt_size linear_replayssm_cache_len
        kt_cpuinfer kt_threadpool_count kt_max_deferred_experts_per_token dllm_fdfo
        enable_deterministic_inference rl_on_policy_target disable_aiter_allreduce_fusion_in_prefill
        disable_aiter_allreduce_fusion_in_decode enable_amd_monokernel dsa_triton_union
        enable_dsa_fused_indexer enable_paged_experts paged_experts_num_resident
        enable_nvidia_megakernel enable_tf32_matmul enable_encoder_swa_bounded_replay
        enable_decoder_swa_bounded_replay
    """,
    "It decides when requests run, and how many.": """
        mem_fraction_static max_running_requests max_queued_requests max_total_tokens
        chunked_prefill_size prefill_decode_interval enable_dynamic_chunking max_prefill_tokens
        prefill_max_requests schedule_policy enable_priority_scheduling disable_priority_preemption
        default_priority_value abort_on_priority_when_disabled schedule_low_priority_values_first
        priority_scheduling_preemption_threshold retraction_policy schedule_conservativeness
        swa_full_tokens_ratio disable_hybrid_swa_memory prefill_only_disable_kv_cache
        disable_chunked_prefix_cache disable_overlap_schedule num_continuous_decode_steps
        scheduler_recv_interval enable_mixed_chunk max_mamba_cache_size mamba_full_memory_ratio
        enable_prefill_delayer prefill_delayer_max_delay_passes
        prefill_delayer_token_usage_low_watermark prefill_delayer_forward_passes_buckets
        prefill_delayer_wait_seconds_buckets prefill_delayer_queue_min_ratio
        prefill_delayer_max_delay_ms min_free_slots_delay _swa_full_tokens_ratio_explicitly_set
        swa_prefix_tails prefill_decode_interval_min_bs
    """,
    "It decides how much is kept, and where.": """
        radix_eviction_policy radix_eviction_policy_config disable_radix_cache
        enable_session_radix_cache radix_cache_backend enable_hierarchical_cache
        hicache_host_memory_mode hicache_ratio hicache_size hicache_write_policy hicache_io_backend
        hicache_storage_backend hicache_storage_prefetch_policy
        hicache_storage_backend_extra_config hicache_storage_prefetch_retry_poll_interval
        hicache_storage_prefetch_retry_max_attempts enable_unified_cache_external_linker
        unified_cache_external_linker_backend enable_hisparse hisparse_config enable_lmcache
        lmcache_config_file enable_flexkv flexkv_config_file enable_memory_saver
        enable_weights_cpu_backup enable_draft_weights_cpu_backup
        _radix_eviction_policy_explicitly_set hicache_host_memory_fraction enable_linker_mla_dedup
        unified_cache_external_linker_config file_storage_path
    """,
    "It decides which processes and machines compute, and who asks them.": """
        nccl_port dist_timeout dist_init_addr gated_launch_port nnodes node_rank dcp_size
        pp_max_micro_batch_size pp_async_batch_depth dp_size attn_dp_size load_balance_method
        moe_dp_size dwdp_size dcp_comm_backend dcp_replicate_q_proj enable_prefill_cp
        enable_cp_decode_attn_tp enable_dp_attention enable_dp_attention_local_control_broadcast
        enable_dp_lm_head enable_tp_lm_head_all_to_all enable_attn_tp_input_scattered
        enable_shared_experts_attn_tp shared_experts_tp_size enable_dense_mlp_attn_tp
        enable_layernorm_sp disable_attn_tp_gather enable_p2p_check decoupled_spec_bind_endpoint
        decoupled_spec_connect_endpoints decoupled_spec_rank decoupled_spec_role ep_size
        moe_dense_tp_size ep_join_rank_offset elastic_ep_initial_size max_ep_size
        disaggregation_mode disaggregation_transfer_backend disaggregation_bootstrap_port
        disaggregation_ib_device disaggregation_decode_enable_radix_cache
        disaggregation_decode_enable_offload_kvcache disaggregation_decode_retraction_backup
        num_reserved_decode_tokens disaggregation_decode_extra_slots
        disaggregation_decode_polling_interval optimistic_prefill_attempts encoder_only
        language_only language_model_only encoder_transfer_backend encoder_urls
        encoder_bootstrap_port encoder_register_urls enable_adaptive_dispatch_to_encoder
        enable_pdmux pdmux_config_path sm_group_num disaggregation_enable_kv_checksum
        enable_pd_role_switch disaggregation_decode_host_receive_threshold
        disaggregation_decode_allocation_policy enable_cp_tp_group_sharing
        enable_megamoe_for_layernorm_sp
    """,
    "It decides which tokens a draft proposes, not its states.": """
        speculative_num_steps speculative_eagle_topk speculative_num_draft_tokens
        speculative_dflash_block_size speculative_dspark_block_size
        speculative_dspark_sps_table_path speculative_dspark_confidence_sts_path
        speculative_dspark_align_verify_tokens_to_graph_tier speculative_accept_threshold_single
        speculative_accept_threshold_acc speculative_use_rejection_sampling speculative_token_map
        speculative_attention_mode speculative_dsa_topk_backend speculative_draft_window_size
        speculative_moe_runner_backend speculative_moe_a2a_backend
        _speculative_draft_quantization_explicitly_set
        enable_multi_layer_eagle speculative_adaptive speculative_adaptive_config spec_trace_dir
        speculative_ngram_min_bfs_breadth speculative_ngram_max_bfs_breadth
        speculative_ngram_match_type speculative_ngram_max_trie_depth speculative_ngram_capacity
        speculative_ngram_external_corpus_path speculative_ngram_external_sam_budget
        speculative_ngram_external_corpus_max_tokens speculative_domino_candidate_pool_size
        speculative_boundary_reduction speculative_use_block_verification
        speculative_draft_sink_size
    """,
}


def names_in(text: str) -> list[str]:
    """Return the fields that a text lists, each after the name of its configuration."""
    names, group = [], ""
    for word in text.split():
        if word.endswith(":"):
            group = word.replace(":", ".")
        else:
            names.append(group + word)
    return names


def check(fields: set[str], changing: list[str], same: dict[str, str]) -> None:
    listed = [*changing, *(name for text in same.values() for name in names_in(text))]
    assert sorted(listed) == sorted(set(listed)), "in both lists, or twice"
    assert fields - set(listed) == set(), "new: does it change what bytes of KV mean?"
    assert set(listed) - fields == set(), "the engine has these no more"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> VllmConfig:
    """Return vLLM's configuration, with all parts that have fields that change the namespace."""
    config = whole_config([], tiny_model(tmp_path_factory.mktemp("model")))
    config.speculative_config = SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=1,
        prompt_lookup_max=2,
        target_model_config=config.model_config,
        target_parallel_config=ParallelConfig(),
    )
    config.model_config.multimodal_config = MultiModalConfig()
    return config


def part_of(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config


def test_each_field_of_vllm_is_known(whole: VllmConfig) -> None:
    changing = [*options.SETTINGS, *names_in(VLLM_OTHERWISE)]
    changing.remove("use_v2_model_runner")
    known = [*changing, *(name for text in VLLM_SAME.values() for name in names_in(text))]
    # Those of which single fields are listed.
    parts = {name.rpartition(".")[0] for name in known}
    fields = {
        f"{part}.{field.name}".removeprefix(".")
        for part in parts
        for field in dataclasses.fields(part_of(whole, part) if part else whole)
    }
    check(fields - parts, changing, VLLM_SAME)


def vllm_digest(vllm_config: VllmConfig) -> str:
    # It is found on the stack.
    assert vllm_config is not None
    config = make_config([], engine_id="kvring-knobs")
    return options.layout_of(TieringOffloadingSpec(config), ROW_BYTES)


@pytest.mark.parametrize("name", options.SETTINGS)
def test_two_values_of_a_field_of_vllm_give_two_namespaces(
    whole: VllmConfig, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    plain = vllm_digest(whole)
    assert vllm_digest(copy.deepcopy(whole)) == plain
    other = copy.deepcopy(whole)
    part, _, field = name.rpartition(".")
    holder = part_of(other, part) if part else other
    if name == "use_v2_model_runner":
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", str(int(not whole.use_v2_model_runner)))
    else:
        object.__setattr__(holder, field, another(getattr(holder, field)))
    assert vllm_digest(other) != plain


def another(value: Any) -> Any:
    """Return another value of about the type of one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return {"other": "other"} if isinstance(value, dict) else "other"


# SGLang refuses others.
VALID: Final = {"speculative_algorithm": "EAGLE"}


def test_each_field_of_sglang_is_known() -> None:
    groups = groups_of(ServerArgs)
    whole = {
        name for text in SGLANG_SAME.values() for name in names_in(text) if name.endswith(".*")
    }
    fields = {f"{group}.*" if f"{group}.*" in whole else name for name, group in groups.items()}
    changing = [*settings.SETTINGS, *settings.FILES, *names_in(SGLANG_OTHERWISE)]
    check(fields, changing, SGLANG_SAME)


def test_two_values_of_a_field_of_sglang_give_two_namespaces(tmp_path: Path) -> None:
    pool = kv_pool()
    file = tmp_path / "file"
    file.write_text("weights")
    plain = namespace_of(pool)
    for name in settings.SETTINGS:
        value = VALID.get(name) or another(getattr(ServerArgs(model_path="dummy"), name))
        assert namespace_of(pool, **{name: value}) != plain, name
    for name in settings.FILES:
        assert namespace_of(pool, **{name: str(file)}) != plain, name
    assert namespace_of(pool) == plain
