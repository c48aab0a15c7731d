"""Layers with weights: parameters by name, with the job's adapters, on one tape.

An architecture's forward (:mod:`vramplan.analytic.architectures`) calls these by transformers' module names. The first
call of a name declares the parameter, so one description gives parameter counts, gradients, optimizer states and
traffic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import OF_REFERENCE, SAVED, Parameter, Resident, Stored, Tensor, leaf
from vramplan.analytic.autograd.tape import Tape
from vramplan.analytic.layer_folding import STACK
from vramplan.analytic.layers import dora_torchtune, liger, lora, moe_peft
from vramplan.analytic.layers.liger_models import LigerLayers
from vramplan.analytic.layers.lora import Adapter
from vramplan.analytic.layers.lora_targets import is_saved_name
from vramplan.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class WeightConfig:
    """Settings of a job that decide which weights exist, their dtypes, and which of them train."""

    dtype: str = "bf16"
    """Stored dtype of the model's own weights."""
    fp32_norms: bool = False
    full: bool = True
    """Whether the model's own weights train."""
    lora_rank: int = 0
    lora_targets: tuple[str, ...] | None = None
    """Names of modules with an adapter; None: every linear layer but the output head."""
    lora_dropout: float = 0.0
    adapter_dtype: str = "fp32"
    adapter_input: str | None = None
    """Dtype that PEFT casts an adapter's input to, if the adapter computes in another one (FSDP1: it is not gathered
    yet)."""
    reference_adapters: str | None = None
    """Dtype of frozen adapters that only the reference uses, if there are any."""
    is_reference: bool = False
    """Whether they are the ones in use."""
    head_dtype: str | None = None
    """Dtype of a head that is not tied, if it is not that of the other weights."""
    dora: bool = False
    modules_to_save: tuple[str, ...] = ()
    """Ends of the names of modules that train as a copy."""
    saved_dtype: str | None = None
    quantize: str = "none"
    """Stored form of frozen linear layers: none, int8, nf4, nf4-double with quantized scales, or nf4-torchao."""
    compute_dtype: str = "bf16"
    """Dtype that quantized layers compute in."""
    input_needs_grad: bool = False
    """transformers' enable_input_require_grads: the embedding's output becomes a leaf that needs a gradient."""
    peft_expert_pattern: str = ""
    """Pattern by which PEFT adapts stacked expert weights (:mod:`vramplan.analytic.layers.moe_peft`)."""
    linear_experts: bool = False
    """Whether experts are separate linear layers (:mod:`vramplan.analytic.layers.moe_linear_experts`)."""


def is_norm(name: str) -> bool:
    """Whether a weight of this name belongs to a norm."""
    return "norm" in name or ".ln_" in name or name.startswith("ln_")


@dataclass(slots=True)
class Modules:
    """The layers of one model on one tape."""

    tape: Tape
    training: WeightConfig
    liger: LigerLayers = LigerLayers()
    """The layers that Liger's kernels compute."""
    reference_liger: LigerLayers = LigerLayers()
    """The same of the reference."""
    norms_in_fp32: bool = False
    """Whether RMS norms are cast back after the product with their weight, whatever the model (torchtune)."""
    of_torchtune: bool = False
    """Whether layers are torchtune's: what attention returned lives to a layer's end, DoRA is its own."""
    embedded: Parameter | None = None
    """Weight of the first embedding, which a tied head shares."""
    embedded_dtype: str = ""
    """Dtype of the first embedding's output."""
    embedding_locals: list[Tensor] = field(default_factory=list)
    """Embeddings held until the model's forward() returns, if they are not the first layer's input."""
    beside_head: list[Tensor] = field(default_factory=list)
    """What the model's forward() holds while its head runs: the last layer's output (torchtune)."""
    hook_outputs: list[Tensor] = field(default_factory=list)
    """What a hook in front of the outer model made of its inputs, held until that has its outputs (ms-swift)."""
    multimodal_locals: list[Tensor] = field(default_factory=list)
    """Tensors held by the multimodal wrapper's forward() until it returns."""
    joins_images: bool = True
    """Whether the features of all images are concatenated."""
    tower_locals: list[Tensor] = field(default_factory=list)
    """Tensors held by the vision tower's forward() until it returns."""
    deep: list[Tensor] = field(default_factory=list)
    """Image features that are added to the output of the language model's first layers (DeepStack)."""
    is_within: bool = False
    """Whether the language model is a part of a model that sees."""
    mixes_in: Callable[[Tensor, Tensor], Tensor] | None = None
    """From ids and their embeddings to those that the language model takes, if the outer model changes them."""
    per_layer: Tensor | None = None
    """An input of its own for each layer, (B, S, layers, width), made of the ids (Gemma 3n, Gemma 4)."""
    features: list[Tensor] = field(default_factory=list)
    """Image features, held by the model's outputs until the loss exists."""
    generates: bool = False
    """Whether ``generate`` runs, in which each row has positions of its own."""
    decodes: bool = False
    """Whether ``generate`` runs a forward of one token behind the prompt."""
    cache: list[Tensor] = field(default_factory=list)
    """Keys and values, held by the model's outputs until the loss exists."""
    outputs: list[Tensor] = field(default_factory=list)
    """The model's outputs, held by the loop until backward is over (`Job.keeps_outputs`)."""
    loop_locals: list[Tensor] = field(default_factory=list)
    """What names of a plain loop hold until the next micro-step assigns them again."""
    logged: list[Tensor] = field(default_factory=list)
    """What a loop's log of the micro-batch before still holds."""
    states: list[Tensor] | None = None
    """The input of each layer and the last hidden state, if the outputs hold them (`output_hidden_states`)."""
    widths: dict[str, int] = field(default_factory=dict)
    """Smaller side of each adapted layer, to check the LoRA rank."""
    layers_without_input_grad: set[int] = field(default_factory=set)
    """Numbers of the layers whose input needs no gradient."""
    idle: set[tuple[int | None, str]] = field(default_factory=set)
    """Frozen linear layers whose input needs no gradient: they have no backward."""
    routers: set[str] = field(default_factory=set)
    """Modules that are no linear layers but have a weight of two dimensions."""

    def enter_layer(self, phase: str, number: int, x: Tensor) -> None:
        """Begin the layer `number` with input `x`."""
        self.tape.enter(phase, number)
        if x.node is None and phase.startswith("forward"):  # nothing has a gradient where a reference runs
            self.layers_without_input_grad.add(number)

    def resident(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """A buffer or part of one: memory that exists before the step."""
        return Tensor(self.tape, Resident(), shape, dtype)

    def parameter(
        self,
        name: str,
        *shape: int,
        adapter: bool = False,
        frozen: bool = False,
        quantize: str = "none",
        dtype: str = "",
    ) -> Parameter:
        """The weight `name` of the current layer, declared on first use; `frozen`: it never trains.

        `dtype`: what transformers stores it in, if that does not follow the other weights.

        For modules_to_save it is the copy that trains; the frozen original is declared too.
        """
        training = self.training
        if adapter and training.is_reference:
            return self._declared(f"{name}{OF_REFERENCE}", shape, training.adapter_dtype, False)
        if adapter:
            return self._declared(name, shape, training.adapter_dtype, True)
        if quantize != "none":
            return self._declared(name, shape, training.compute_dtype, False, quantize)
        saved = self.is_saved(name.rpartition(".")[0])
        dtype = dtype or ("fp32" if training.fp32_norms and is_norm(name) else training.dtype)
        parameter = self._declared(name, shape, dtype, training.full and not frozen)
        return self._declared(f"{name}{SAVED}", shape, training.saved_dtype or dtype, True) if saved else parameter

    def _declared(
        self, name: str, shape: tuple[int, ...], dtype: str, trains: bool, quantize: str = "none"
    ) -> Parameter:
        tape = self.tape
        key = (tape.layer, name)
        parameter = tape.parameters.get(key)
        if parameter is None:
            stored = stored_as(quantize, shape, dtype)
            parameter = tape.parameters[key] = Parameter(tape, tape.named(name), shape, dtype, trains, stored, quantize)
        return parameter

    def trained_head(self, name: str, dtype: str, *shape: int) -> Parameter:
        """A weight of a head that trains beside the model, whichever of the model's weights train."""
        return self._declared(name, shape, dtype, True)

    def linear(
        self,
        name: str,
        x: Tensor,
        out_features: int,
        bias: bool = False,
        cached: bool = True,
        head: bool = False,
        dtype: str = "",
    ) -> Tensor:
        """``nn.Linear`` or bitsandbytes' replacement, with an adapter if it is a LoRA target.

        `cached=False`: ``x @ weight.T`` (falcon); autocast does not cache the cast of a view. `head`: the model's last
        module, which is not quantized (transformers 5.23, quantizers/base.py: get_keys_to_not_convert). `dtype`: as
        :meth:`parameter` takes it.
        """
        self.tape.module = name
        quantize = self.training.quantize if cached and not head else "none"  # nor is falcon's subclass of nn.Linear
        weight = self.parameter(f"{name}.weight", out_features, x.shape[-1], quantize=quantize, dtype=dtype)
        shift = self._bias(name, x, weight) if bias else None
        passes = x.node is not None or self.training.dora  # DoRA's own product needs the weight's gradient path
        if not passes and not weight.trains and self.tape.grad_enabled:
            self.idle.add((self.tape.layer, name))
        if not self.is_target(name):
            return base_output(x, weight, shift, cached)
        adapter = self.adapter(name, weight, shift)
        with_adapter = lora.dense if quantize in ("none", ops.TORCHAO_NF4) else lora.quantized
        if self.of_torchtune and self.training.dora:
            with_adapter = dora_torchtune.directed
        return with_adapter(x, base_output(x, weight, shift, cached), adapter)  # no local holds the base output

    def _bias(self, name: str, x: Tensor, weight: Parameter) -> Parameter:
        """A bias; that of a quantized layer is stored in the compute dtype, or with int8 in the input's."""
        if weight.quantize == "none":
            return self.parameter(f"{name}.bias", weight.shape[0])
        dtype = x.dtype if weight.quantize == "int8" else weight.dtype
        return self._declared(f"{name}.bias", weight.shape[:1], dtype, False)

    def adapter(self, name: str, weight: Parameter, shift: Parameter | None = None) -> Adapter:
        """The adapter on a layer."""
        training, (out_features, in_features) = self.training, weight.shape
        self.widths[name.rpartition(".")[2]] = min(in_features, out_features)
        down = self.parameter(f"{name}.lora_A.weight", training.lora_rank, in_features, adapter=True)
        up = self.parameter(f"{name}.lora_B.weight", out_features, training.lora_rank, adapter=True)
        magnitude = None
        if training.dora:
            magnitude = self.parameter(f"{name}.lora_magnitude_vector.weight", out_features, adapter=True)
        return Adapter(down, up, magnitude, training.lora_dropout, weight, shift, training.adapter_input)

    def head(self, x: Tensor, vocabulary: int, tied: bool, bias: bool = False) -> Tensor:
        """Logits of the output head; a tied head uses the first embedding's weight."""
        self.tape.module = "lm_head"
        weight = self.head_weight(vocabulary, x.shape[-1], tied)
        shift = self.parameter("lm_head.bias", vocabulary) if bias else None
        if self.training.lora_targets is not None and self.is_target("lm_head"):
            adapter = self.adapter("lm_head", weight, shift)
            return lora.dense(x, ops.linear(x, weight, shift, "logits", "logits"), adapter)
        return ops.linear(x, weight, shift, "logits", "logits")

    def head_weight(self, vocabulary: int, width: int, tied: bool) -> Parameter:
        """The output head's weight, for losses that multiply by it."""
        if not tied and self.training.head_dtype:
            return self._declared("lm_head.weight", (vocabulary, width), self.training.head_dtype, False)
        if not tied:
            return self.parameter("lm_head.weight", vocabulary, width)
        assert self.embedded is not None
        if self.is_saved("lm_head"):  # the trained copy is not tied
            return self._declared(
                f"lm_head.weight{SAVED}", (vocabulary, width), self.training.saved_dtype or self.training.dtype, True
            )
        return self.embedded

    def is_target(self, name: str) -> bool:
        """Whether the layer `name` gets an adapter."""
        targets = self.training.lora_targets
        if not self.training.lora_rank or moe_peft.meant(self.training.peft_expert_pattern, name):
            return False
        if is_saved_name(name, self.training.modules_to_save):
            return False
        return targets is None or any(name == target or name.endswith(f".{target}") for target in targets)

    def is_saved(self, module: str) -> bool:
        """Whether the module trains as a copy (peft/utils/other.py, 0.21: _set_trainable)."""
        parts = module.split(".")
        paths = [".".join(parts[: number + 1]) for number in range(len(parts))]
        return any(path.endswith(end) for path in paths for end in self.training.modules_to_save)

    def rms_norm(self, name: str, x: Tensor, offset: bool = False, cast_last: bool = False) -> Tensor:
        """RMS norm in fp32, cast back before the product with the weight (llama) or after it.

        `offset`: times ``1 + weight.float()`` (gemma). `cast_last`: times the weight in fp32 (olmo2, glm4 ...).
        """
        tape = self.tape
        tape.module = name
        weight = self.parameter(f"{name}.weight", x.shape[-1])
        if name.rpartition(".")[2] in self.liger.rms_norms:
            return liger.rms_norm(x, weight, self.liger.in_place, self.liger.multiprocessors)
        dtype, argument = x.dtype, x  # held until the function returns: the module's argument
        x = ops.to(argument, "fp32")
        x = ops.mul(x, ops.rsqrt(ops.shift(ops.mean(ops.square(x)))), "normalised")
        if offset:
            return ops.to(ops.mul(x, ops.shift(ops.to(weight, "fp32")), "output in fp32"), dtype, "output")
        if cast_last or self.norms_in_fp32:
            return ops.to(ops.mul(weight, x, "output in fp32"), dtype, "output")
        return ops.mul(weight, ops.to(x, dtype, "normalised"), "output")

    def layer_norm(self, name: str, x: Tensor, bias: bool = True) -> Tensor:
        """``nn.LayerNorm``."""
        self.tape.module = name
        width = x.shape[-1]
        weight = self.parameter(f"{name}.weight", width)
        shift = self.parameter(f"{name}.bias", width) if bias else None
        if shift is not None and name.rpartition(".")[2] in self.liger.layer_norms:
            return liger.layer_norm(x, weight, shift, self.liger.multiprocessors)
        return ops.layer_norm(x, weight, shift)

    @property
    def fuses_mlp(self) -> bool:
        """Whether Liger computes the gated feed-forward of the current layer."""
        in_tower = self.tape.layer is not None and self.tape.layer >= STACK
        return self.liger.tower_mlp if in_tower else self.liger.mlp

    def embedding(self, name: str, ids: Tensor, rows: int, width: int, scaled: bool = False) -> Tensor:
        """``nn.Embedding``; under LoRA with checkpointing the token embedding's output needs a gradient.

        `scaled`: the module multiplies by a number (gemma), so the hook gets the scaled output.
        """
        self.tape.module = name
        weight = self.parameter(f"{name}.weight", rows, width)
        original = self.tape.parameters[self.tape.layer, f"{name}.weight"]
        if self.embedded is None:
            self.embedded, self.embedded_dtype = original, weight.dtype
        out = ops.embedding(ids, weight)
        if scaled:
            out = ops.scale(out, "scaled embedding")
        if self.training.input_needs_grad and original is self.embedded and out.node is None and self.tape.grad_enabled:
            return leaf(out)
        return out


def stored_as(quantize: str, shape: tuple[int, ...], dtype: str) -> Stored:
    """The tensors that a weight is stored as; none if it is not quantized."""
    if quantize == ops.TORCHAO_NF4:
        return ops.stored_by_torchao(shape, dtype)
    return () if quantize == "none" else ops.stored_as(quantize, shape)


def base_output(x: Tensor, weight: Parameter, bias: Parameter | None, cached: bool) -> Tensor:
    """Output of a dense or quantized linear layer without adapter."""
    if weight.quantize == "none":
        return ops.linear(x, weight, bias, cached=cached)
    if weight.quantize == ops.TORCHAO_NF4:
        out = ops.linear_by_torchao(x, weight)
        return out if bias is None else ops.add(out, bias, "base output with bias")
    return ops.linear_8bit(x, weight) if weight.quantize == "int8" else ops.linear_4bit(x, weight, bias)
