# the actor and a critic on two GPUs, rows by a budget of tokens, completions by SGLang
PYTHONUNBUFFERED=1 python3 -m verl.trainer.main_ppo model_engine=megatron \
    data.train_files=/data/sums.parquet data.max_prompt_length=1024 data.max_response_length=3072 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct \
    actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 \
    actor_rollout_ref.actor.entropy_coeff=0.001 actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \
    actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.n=1 \
    critic.model.path=Qwen/Qwen2.5-0.5B-Instruct trainer.n_gpus_per_node=2 trainer.nnodes=1
