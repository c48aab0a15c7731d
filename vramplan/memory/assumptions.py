"""Describes in words the settings that an estimate assumes: what every answer states below its numbers."""

from __future__ import annotations

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.images import ProcessedImage, shown
from vramplan.inputs.images.sounds import seconds as heard_seconds
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import PPO_TRAINERS, ROLLOUTS
from vramplan.inputs.ppo_rules import adapts_values
from vramplan.inputs.sample_lengths import MICRO_STEPS
from vramplan.inputs.task_rules import OF_FRAMEWORKS, TRL_TASKS
from vramplan.inputs.verl import Critic
from vramplan.memory.calibration import is_measured, margin_of
from vramplan.memory.estimate import SimulatedStep
from vramplan.memory.host import offloaded
from vramplan.step_time.link_rates import describe_links
from vramplan.units import format_bytes

STRATEGY_TEXTS = {
    "ddp": "DDP: each GPU holds everything",
    "zero0": "DeepSpeed without ZeRO: each GPU holds everything, and fp32 copies of what trains",
    "zero1": "DeepSpeed ZeRO-1: optimizer states are sharded",
    "zero2": "DeepSpeed ZeRO-2: gradients and optimizer states are sharded",
    "zero3": "DeepSpeed ZeRO-3: weights, gradients and optimizer states are sharded",
    "device_map": "device_map auto: one process, layers placed on several GPUs, which run one after another",
    "fsdp": "FSDP: weights, gradients and optimizer states are sharded",
}


def assumptions(job: Job, gpu: Gpu, step: SimulatedStep) -> tuple[str, ...]:
    """The settings behind an estimate, those first that users state least often and that change memory most."""
    source = {"trace": "the model's own code, traced with "}.get(step.by, "") + step.versions
    return (
        describe_samples(job, step),
        describe_step(job, step.own_model),
        describe_weights(job),
        *_describe_sharding(job, step),
        *(("the model is loaded directly onto the GPU (device_map)",) if job.device_map else ()),
        describe_method(job),
        *filter(None, (describe_links(job, gpu),)),
        f"{gpu.title}: {gpu.cuda_total_bytes >> 20} MiB visible to CUDA ({gpu.cuda_total_source})",
        margin_of(job, gpu).source,
        f"{source}; {'NCCL is' if is_measured(gpu) else 'CUDA context and NCCL are'} not measured on this GPU",
    )


def describe_samples(job: Job, step: SimulatedStep) -> str:
    """Lengths and images of the samples, and what they leave in the allocator's cache."""
    if step.own_model:
        text = "the example's own inputs"
    else:
        text = step.inputs_text or _describe_images(job, step.picture) + _describe_lengths(job)
        if step.model_class:
            text = f"trained as {step.model_class}; {text}"
    if job.expandable_segments:
        return f"{text}, expandable segments"
    if job.lengths is None:
        text += " (if lengths vary, PyTorch caches more; expandable_segments avoids that)"
    return text


def describe_step(job: Job, own_model: bool = False) -> str:
    """Optimizer, checkpointing, attention, loss and training loop."""
    checkpointing = "no checkpointing"
    if job.checkpointing == "full":
        checkpointing = f"{'reentrant' if job.reentrant else 'full'} checkpointing"
        if job.strategy == "fsdp" and job.fsdp.checkpoint_wraps_fsdp:
            checkpointing += " around FSDP's layers"
        checkpointing += ", what it keeps in host memory" if job.offloads_activations else ""
    kernels = "" if own_model else f"{job.attention} attention, {job.loss} loss, "
    if job.fused_kernels:
        kernels += f"Liger's kernels for {', '.join(job.fused_kernels)}, "
    loop = "transformers Trainer" if job.loop == "trainer" else "plain loop"
    loop += " that keeps the model's outputs" if job.keeps_outputs else ""
    optimizer = f"{job.optimizer}{' in backward' if job.optimizer_in_backward else ''}"
    return f"{optimizer}, {checkpointing}, {kernels}{loop}"


def describe_weights(job: Job) -> str:
    """Stored dtype and quantization of the weights, and the dtype of the computation."""
    if job.engine_casts and (job.prepare_for_kbit_training or job.fp32_norms):
        return f"{_describe_quantization(job)}{job.dtype} weights, cast by DeepSpeed from fp32, no autocast"
    weights = f"{_describe_quantization(job)}{'fp32' if job.prepare_for_kbit_training else job.dtype} weights"
    weights += " but fp32 norms" if job.fp32_norms else ""
    if job.computed_dtype and job.method == "full" and job.dtype != "fp32":
        return f"{weights}, which accelerate shards in fp32 and gathers in {job.computed_dtype}"
    return weights + (f" under {job.autocast} autocast" if job.autocast != "none" else ", no autocast")


def describe_method(job: Job) -> str:
    """Full fine-tuning, or the adapters with their rank, layers and dtype."""
    if job.method == "full":
        return f"{_describe_task(job)}full fine-tuning"
    targets = "all linear layers" if job.lora_targets is None else ", ".join(job.lora_targets)
    adapters = f"rank {job.lora_rank} on {targets}, dropout {job.lora_dropout:g}, {job.lora_dtype} adapters"
    method = f"{_describe_task(job)}{'DoRA' if job.method == 'dora' else 'LoRA'} {adapters}"
    if job.modules_to_save:
        copies = f"{job.saved_dtype} copies" if job.saved_dtype else "copies"
        method += f"; {', '.join(job.modules_to_save)} fully trained, in {copies}"
    return method


REFERENCES = {
    "adapters_off": "the model without adapters as reference",
    "frozen_adapters": "frozen adapters of the same rank and layers as reference",
    "model": "a second model as reference",
    "precomputed": "precomputed log-probabilities of the reference",
    "none": "no reference",
}


def _describe_task(job: Job) -> str:
    """The task and its reference, to stand before the method; empty for the next token."""
    if job.task not in TRL_TASKS:
        return ""
    prompt = f", prompts of {job.prompt_length} tokens" if job.prompt_length else ""
    if job.task in ROLLOUTS:
        reference = REFERENCES[job.reference_source]
        if job.runs_verl and job.reference == "model":
            reference += " in host memory"
        return f"{_describe_grpo(job)}{_describe_rewards(job)}{prompt}, {reference}; "
    if job.task == "gkd":
        return _describe_distillation(job, prompt)
    if job.value_model is not None:
        trains = "with adapters of its own" if adapts_values(job) else "all of which trains"
        return (
            f"PPO as {PPO_TRAINERS[job.ppo_trainer]} runs it, completions by transformers' generate, at most"
            f" {job.rollout_batch_size} at a time, values by {job.value_model} in {job.dtype_of_values}, {trains},"
            f" rewards by {job.reward_model} in {job.dtype_of_rewards}{prompt}, {REFERENCES[job.reference_source]}; "
        )
    if job.task == "ppo":
        rewards = "another set of adapters" if job.reward_adapters else job.reward_model or "a server"
        return (
            f"PPO as LLaMA-Factory 0.9.5 with TRL 0.9.6 runs it, completions by transformers' generate, rewards by"
            f" {rewards}{prompt}, {REFERENCES[job.reference_source]}; "
        )
    if job.loss == "value_head":
        return "reward model (a value head beside all logits) as LLaMA-Factory trains it on pairs; "
    if job.task == "reward" and job.loss == "kept_log_probs":
        return "reward model (a number for each token) as OpenRLHF trains it on pairs; "
    if job.task == "reward":
        return "reward model (one label) as TRL 1.16 trains it on pairs; "
    if job.task in ("orpo", "cpo", "simpo"):
        versions = {"fused_log_probs": "1.16", "axolotl_log_probs": AXOLOTL}
        return f"{job.task.upper()} as TRL {versions.get(job.loss, '0.19 to 1.13')} runs it on pairs; "
    pairs = "" if job.task == "kto" else " on pairs"
    trl = {"liger": "TRL 1.12 with Liger's loss", "axolotl_log_probs": f"TRL {AXOLOTL}"}.get(job.loss, "TRL")
    package = OF_FRAMEWORKS.get(job.loss, trl)
    return f"{job.task.upper()} as {package} runs it{pairs}{prompt}, {REFERENCES[job.reference_source]}; "


AXOLOTL = "1.9 with axolotl's kernel of log-probabilities"
DIVERGENCES = {
    "jsd": "generalized Jensen-Shannon divergence",
    "forward_kl": "forward KL divergence",
    "reverse_kl": "reverse KL divergence",
}
PACKAGES = {
    "sliced": "TRL 0.19 to 1.6",
    "logits_to_keep": "ms-swift",
    "chunked": "DistillationTrainer of TRL 1.16",
}
"""Whose distillation it is, by the loss, where it is not TRL 1.16's GKDTrainer."""
GENERATORS = {"student": "the student", "teacher": "the teacher", "both": "student or teacher"}


def _describe_distillation(job: Job, prompt: str) -> str:
    """The teacher, the divergence, and who generates."""
    who = GENERATORS.get(job.generated_by)
    completions = f"completions generated by {who}" if who else "completions of the data set"
    if job.generate_with != "transformers":
        completions = ENGINES[job.generate_with].format(share=job.vllm_share)
    teacher = f"{job.teacher} in {job.dtype_of_teacher} as teacher"
    if job.teacher is None:
        teacher = f"{job.teacher_logits} log-probabilities of each token by a teacher on other GPUs"
    package = PACKAGES.get(job.loss, "TRL 1.16")
    name = "distillation" if job.loss == "chunked" else "GKD"
    return f"{name} as {package} runs it, {teacher}, {DIVERGENCES[job.divergence]}{prompt}, {completions}; "


ENGINES = {
    "transformers": "completions by transformers' generate",
    "vllm": "completions by vLLM on the same GPUs, which keeps its share of {share:g}",
    "vllm_sleep": "completions by vLLM on the same GPUs, which gives its share of {share:g} back while training runs",
    "vllm_server": "completions by vLLM on other GPUs",
}


def _describe_verl(job: Job) -> str:
    """What the actor does with logits, and what waits in host memory."""
    logits = {"undivided": "as they are", "copied": "divided into a copy", "in_place": "divided in place"}
    waiting = " and ".join(
        {"weights": "weights", "optimizer": "optimizer states"}[one] for one in job.verl.in_host_memory
    )
    entropy = ", entropies in the loss" if job.verl.entropy else ""
    name = "GRPO" if job.verl.critic is None else "PPO"
    texts = [f"{name} as verl's actor runs it (logits {logits[job.verl.logits]}{entropy})", ENGINES[job.generate_with]]
    if waiting:
        texts.append(f"{waiting} in host memory while they are not needed")
    if job.verl.critic is not None:
        texts.append(_describe_critic(job.verl.critic))
    return ", ".join(texts).format(share=job.vllm_share).replace("vLLM", job.verl.engine_name)


def _describe_critic(critic: Critic) -> str:
    """The critic's model, its micro-batch, and what of it waits in host memory."""
    tokens = critic.micro_batch_size * critic.sequence_length
    waits = {"weights": critic.param_offload, "optimizer states": critic.optimizer_offload}
    waiting = " and ".join(name for name, does in waits.items() if does)
    where = f", its {waiting} in host memory while they are not needed" if waiting else ""
    return f"a critic ({critic.model or 'of the same model'}, {critic.dtype}, {tokens:,} tokens at a time{where})"


def _describe_grpo(job: Job) -> str:
    """GRPO or RLOO, what generates for it, and the version of TRL by what becomes of the logits."""
    if job.runs_verl:
        return _describe_verl(job)
    versions = {"chunked": "1.16", "liger": "1.12 with Liger's loss", "divided_in_place": "1.0 to 1.9"}
    versions["axolotl_log_probs"] = AXOLOTL
    version = versions.get(job.loss, "up to 1.13")
    package = "ms-swift" if job.vllm_sync_parts is not None else OF_FRAMEWORKS.get(job.loss, f"TRL {version}")
    shared = ", of which the weights are the model's own" if job.vllm_weights == "shared" else ""
    engine = ENGINES[job.generate_with].format(share=job.vllm_share)
    if job.runs_openrlhf:
        return _describe_openrlhf(job, engine)
    return f"{str(job.task).upper()} as {package} runs it, {engine}{shared}"


def _describe_openrlhf(job: Job, engine: str) -> str:
    """The model that trains, those beside it, and where DeepSpeed's states are."""
    own = job.openrlhf
    if own.trains == "critic":
        return "PPO's critic as OpenRLHF runs it"
    if own.trains == "nothing":
        return "OpenRLHF's reference, which scores and never trains" if job.loads_reference else "OpenRLHF's rewards"
    critic = f", the critic (from {own.critic}) in a process of its own" if own.critic else ""
    states = ", DeepSpeed's states in host memory but for training" if own.sleeps else ""
    return f"{'PPO' if own.critic else 'GRPO'} as OpenRLHF runs it: the actor{critic}, {engine}{states}"


def _describe_rewards(job: Job) -> str:
    """The reward model on the same GPU; empty without one."""
    if job.reward_model is None:
        return ""
    rewards = f"{job.reward_model} in {job.dtype_of_rewards}"
    return f", rewards by {rewards} on the same GPU, whose tokenizer gives as many tokens"


def describe_strategy(job: Job) -> str:
    """How GPUs share the work; empty for one GPU."""
    if job.num_gpus == 1 and job.strategy == "ddp":
        return ""
    if job.strategy != "fsdp":
        return STRATEGY_TEXTS[job.strategy]
    replicas = f", {job.fsdp.replicas} replicas of the model" if job.fsdp.replicas > 1 else ""
    return f"{STRATEGY_TEXTS['fsdp']} (version {job.fsdp.version}{replicas})"


def _describe_sharding(job: Job, step: SimulatedStep) -> list[str]:
    """The strategy, how a quantized model is sharded, and the host's share of an offloaded one."""
    texts = [text for text in (describe_strategy(job), _describe_quantized_sharding(job)) if text]
    if step.num_gpus_simulated is not None:
        texts.append(f"{step.num_gpus_simulated} of the {job.num_gpus} GPUs are simulated; another may reserve more")
    if job.offload != "none":
        each = sum(one.num_bytes for one in offloaded(job, step.num_parameters, step.num_trainable_parameters, 1))
        texts.append(f"the host holds about {format_bytes(each)} for each GPU")
    if job.optimizer.startswith("paged_"):
        texts.append(_describe_paged(job.optimizer, step.num_trainable_parameters))
    return texts


PAGED_STATES = {"ademamix": 3, "adamw": 2, "lion": 1}
"""Elements of the states for one of the weight (memory/optimizers.py)."""


def _describe_paged(optimizer: str, num_trainable: int) -> str:
    """Where a paged optimizer's states are, which PyTorch does not count."""
    states = next(count for name, count in PAGED_STATES.items() if name in optimizer)
    size = format_bytes(states * (1 if "8bit" in optimizer else 4) * num_trainable)
    return f"about {size} of optimizer states are managed memory, which the driver moves to the host as the GPU fills"


def _describe_quantized_sharding(job: Job) -> str:
    """What happens to quantized weights if weights are sharded; empty if either is not the case."""
    if job.quantize == "none" or not job.shards_weights or job.layers_of == "torchtune":
        return ""
    if job.strategy == "zero3":
        return (
            "every GPU loads the whole base model, then shards it; bitsandbytes holds the gathered weights until the"
            " step ends"
        )
    if job.quant_storage == "uint8":
        return (
            "four-bit weights, packed in uint8, are not sharded: every GPU holds all of them;"
            " bnb_4bit_quant_storage: bfloat16 shards them"
        )
    loader = "every GPU loads" if job.fsdp.loads_whole_model else "the host loads"
    version = " (transformers 5; version 4 loads it on the host)" if job.fsdp.loads_whole_model else ""
    return f"{loader} the whole base model, then shards it{version}"


def _describe_quantization(job: Job) -> str:
    """Storage of the quantized linear layers, to stand before the rest; empty without quantization."""
    if job.quantize == "int8":
        return "int8 linear layers (no outliers), other "
    how = " (double quantization)" if job.double_quant else ""
    how = " (torchao)" if job.layers_of == "torchtune" else how
    return f"nf4 linear layers{how}, other " if job.quantize == "nf4" else ""


def _describe_lengths(job: Job) -> str:
    if job.lengths is None:
        return f"{job.batches} sequences of {job.sequence_length} tokens, all equally long"
    lengths = [min(length, job.sequence_length) for length in job.lengths]
    return (
        f"{job.batches} sequences of {job.sequence_length} tokens behind {MICRO_STEPS} micro-batches whose samples have"
        f" {min(lengths)} to {max(lengths)}, which leave their blocks in PyTorch's cache"
    )


def _describe_images(job: Job, picture: ProcessedImage | None) -> str:
    """Number, size and tokens of the images, and which vision parts train; empty for a model without vision."""
    if picture is None:
        return ""
    parts = " and ".join(f"{name} {state}" for name, state in (("vision", job.vision), ("projector", job.projector)))
    if not job.pictures:
        return f"no images, {parts}, "
    if job.sounds:
        default = "" if job.audio_seconds else " (default)"
        parts = parts.replace("vision", "tower")
        sounds = f"{job.sounds} sound{'s' * (job.sounds > 1)} of {heard_seconds(job):g} seconds{default}"
        return f"{sounds} as {picture.description}: {job.sounds * picture.all_tokens:,} tokens; {parts}; "
    size, frames = shown(job)
    images = f"{job.pictures} {'image' if frames is None else 'video'}{'s' * (job.pictures > 1)} of "
    images += f"{size} pixels" if frames is None else f"{frames} frames of {size} pixels"
    is_set = job.image_size and (frames is None or job.frames)
    default = "" if is_set else " (default)"
    return f"{images}{default} as {picture.description}: {job.pictures * picture.all_tokens:,} tokens; {parts}; "
