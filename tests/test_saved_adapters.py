"""Adapters of a folder that a training goes on with: read from their own file, asked for where it is not here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramplan.cli.options import spell_flag
from vramplan.errors import ConfigError, UnsupportedError, VramplanError
from vramplan.frameworks.detect import from_path
from vramplan.frameworks.readers import saved_adapters
from vramplan.planner.read_config import read as read_config

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
SAVED: dict[str, Any] = {
    "alpha_pattern": {},
    "base_model_name_or_path": MODEL,
    "bias": "none",
    "inference_mode": True,
    "init_lora_weights": True,
    "loftq_config": {},
    "lora_alpha": 48,
    "lora_dropout": 0.1,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "peft_type": "LORA",
    "r": 24,
    "rank_pattern": {},
    "target_modules": ["v_proj", "q_proj"],
    "task_type": "CAUSAL_LM",
    "use_dora": False,
}
"""What PEFT writes beside the weights, with some of its empty keys."""
SCRIPT = f"""
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
model = AutoModelForCausalLM.from_pretrained("{MODEL}", dtype=torch.bfloat16)
LOAD
trainer = SFTTrainer(model, args=SFTConfig(max_length=512), train_dataset=data)
trainer.train()
model.merge_and_unload().save_pretrained("merged")
"""
LOAD = "model = PeftModel.from_pretrained(model, 'sft', is_trainable=True)"
UNSLOTH = """
from unsloth import FastLanguageModel
from trl import SFTConfig, SFTTrainer
model, tokenizer = FastLanguageModel.from_pretrained("sft", max_seq_length=512)
trainer = SFTTrainer(model, args=SFTConfig(max_length=512), train_dataset=data)
trainer.train()
"""
FILES = {
    "train.py": SCRIPT.replace("LOAD", LOAD),
    "trainer.py": SCRIPT.replace("LOAD", LOAD)
    .replace("from trl import SFTConfig, SFTTrainer", "from transformers import Trainer, TrainingArguments")
    .replace("SFTTrainer(model, args=SFTConfig(max_length=512)", 'Trainer(model, args=TrainingArguments("out")'),
    "unsloth.py": UNSLOTH,
    "llamafactory.yaml": f"model_name_or_path: {MODEL}\nadapter_name_or_path: sft\nstage: sft\ndo_train: true\n"
    "finetuning_type: lora\nlora_rank: 8\nlora_target: all\ncutoff_len: 512\nbf16: true\n",
    "axolotl.yaml": f"base_model: {MODEL}\nadapter: lora\nlora_model_dir: sft\nlora_r: 8\nlora_target_linear: true\n"
    "sequence_len: 512\nmicro_batch_size: 1\nbf16: true\n",
    "swift.sh": f"swift sft --model {MODEL} --tuner_type lora --adapters sft --lora_rank 8 --max_length 512",
}
OPTIONS = {
    "train.py": {"lora_r": "12", "lora_target_modules": "o_proj,down_proj", "lora_dropout": "0"},
    "trainer.py": {"lora_r": "12", "lora_target_modules": "o_proj,down_proj", "lora_dropout": "0"},
    "unsloth.py": {"r": "12", "target_modules": "o_proj,down_proj", "lora_dropout": "0"},
    "llamafactory.yaml": {"lora_rank": "12", "lora_target": "o_proj,down_proj", "lora_dropout": "0"},
    "axolotl.yaml": {"lora_r": "12", "lora_target_modules": "o_proj,down_proj", "lora_dropout": "0"},
    "swift.sh": {"lora_rank": "12", "target_modules": "o_proj,down_proj", "lora_dropout": "0"},
}
"""The options that each framework's refusal names."""
LORA = ("method", "lora_rank", "lora_targets", "lora_dropout")


def parsed_of(folder: Path, name: str, text: str, settings: dict[str, str] | None = None) -> Any:
    """What a file in a folder comes to."""
    path = folder / name
    path.write_text(text)
    return read_config(from_path(path, None, environment={}).with_settings(settings or {}), 1)


def save(folder: Path, **changes: Any) -> None:
    """Write the configuration of adapters as PEFT does."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(SAVED | changes))


@pytest.mark.parametrize("name", FILES)
def test_their_own_file_decides(tmp_path: Path, name: str) -> None:
    save(tmp_path / "sft", target_modules=["v_proj", "q_proj"])
    parsed = parsed_of(tmp_path, name, FILES[name])
    assert [parsed.job[field] for field in LORA] == ["lora", 24, ("q_proj", "v_proj"), 0.1]
    assert parsed.model == MODEL
    assert not parsed.uses_peft_targets
    assert "lora_dropout" not in parsed.names  # whose key would have no effect
    assert any("rank 24 on q_proj, v_proj" in note.text for note in parsed.notes)


@pytest.mark.parametrize("name", FILES)
def test_where_it_is_not_here_the_refusal_names_options_that_answer(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as error:
        parsed_of(tmp_path, name, FILES[name])
    text = error.value.spelled(spell_flag)
    assert "\n" not in text
    for key in list(OPTIONS[name])[:2]:
        assert f"--set {key}=" in text
    job = parsed_of(tmp_path, name, FILES[name], OPTIONS[name]).job
    assert [job[field] for field in LORA] == ["lora", 12, ("o_proj", "down_proj"), 0.0]


@pytest.mark.parametrize("name", [name for name in FILES if name != "unsloth.py"])
def test_one_option_is_not_enough_and_the_files_own_keys_are_not_theirs(tmp_path: Path, name: str) -> None:
    key, value = next(iter(OPTIONS[name].items()))
    with pytest.raises(ConfigError, match="is not here"):
        parsed_of(tmp_path, name, FILES[name], {key: value})


def test_a_folder_by_option(tmp_path: Path) -> None:
    save(tmp_path / "elsewhere", r=6)
    for name, key in (("train.py", "saved_adapters"), ("llamafactory.yaml", "adapter_name_or_path")):
        job = parsed_of(tmp_path, name, FILES[name], {key: str(tmp_path / "elsewhere")}).job
        assert job["lora_rank"] == 6


def test_dropout_that_is_not_known_is_counted(tmp_path: Path) -> None:
    options = {key: value for key, value in OPTIONS["train.py"].items() if key != "lora_dropout"}
    parsed = parsed_of(tmp_path, "train.py", FILES["train.py"], options)
    assert parsed.job["lora_dropout"] == saved_adapters.DROPOUT
    assert any("--set lora_dropout=0" in note.text for note in parsed.notes)


def test_dora_and_modules_to_save(tmp_path: Path) -> None:
    save(tmp_path / "sft", use_dora=True, modules_to_save=["lm_head", "embed_tokens"])
    job = parsed_of(tmp_path, "llamafactory.yaml", FILES["llamafactory.yaml"]).job
    assert (job["method"], job["modules_to_save"], job["saved_dtype"]) == ("dora", ("embed_tokens", "lm_head"), "fp32")
    options = {**OPTIONS["train.py"], "use_dora": "true", "lora_modules_to_save": "lm_head"}
    job = parsed_of(tmp_path / "sft", "train.py", FILES["train.py"], options).job
    assert (job["method"], job["modules_to_save"]) == ("dora", ("lm_head",))


def test_the_folder_of_ms_swift_has_one_inside(tmp_path: Path) -> None:
    save(tmp_path / "sft" / "default")
    job = parsed_of(tmp_path, "swift.sh", FILES["swift.sh"]).job
    assert job["lora_rank"] == 24
    (tmp_path / "sft" / "additional_config.json").write_text('{"lora_dtype": "float32"}')
    with pytest.raises(UnsupportedError, match="lora_dtype float32 is not modelled"):
        parsed_of(tmp_path, "swift.sh", FILES["swift.sh"])


def test_ms_swift_goes_on_with_a_checkpoint(tmp_path: Path) -> None:
    """Its adapters' own configuration counts; where it is not here, it is of a run with the same settings."""
    command = FILES["swift.sh"].replace("--adapters sft", "--resume_from_checkpoint sft")
    parsed = parsed_of(tmp_path, "swift.sh", command)
    assert parsed.job["lora_rank"] == 8
    assert [note.kind for note in parsed.notes if note.key == "resume_from_checkpoint"] == ["warning"]
    save(tmp_path / "sft")
    assert parsed_of(tmp_path, "swift.sh", command).job["lora_rank"] == 24


def test_the_adapters_file_names_the_model(tmp_path: Path) -> None:
    save(tmp_path / "sft")
    load = "model = AutoPeftModelForCausalLM.from_pretrained('sft', is_trainable=True, dtype=torch.bfloat16)"
    parsed = parsed_of(tmp_path, "train.py", SCRIPT.replace("LOAD", load))
    assert (parsed.model, parsed.job["lora_rank"], parsed.job["dtype"]) == (MODEL, 24, "bf16")


def test_the_model_by_a_configuration_of_adapters(tmp_path: Path) -> None:
    save(tmp_path / "sft")
    text = FILES["train.py"].replace(f'"{MODEL}"', "config.base_model_name_or_path")
    text = text.replace("model = Auto", "config = PeftConfig.from_pretrained('sft')\nmodel = Auto", 1)
    text = text.replace("PeftModel, get", "PeftConfig, PeftModel, get")
    assert parsed_of(tmp_path, "train.py", text).model == MODEL
    with pytest.raises(ConfigError, match="base_model_name_or_path is not known"):
        parsed_of(tmp_path, "train.py", text.replace("PeftConfig.from_pretrained('sft')", "f()"))


@pytest.mark.parametrize(
    ("load", "rank"),
    [
        ("model = PeftModel.from_pretrained(model, 'sft').merge_and_unload()", None),
        ("model = PeftModel.from_pretrained(model, 'sft')\nmodel = model.merge_and_unload()\n"
         "model = get_peft_model(model, LoraConfig(r=4))", 4),
        ("if f():\n    loaded = PeftModel.from_pretrained(model, 'sft')\n    model = loaded.merge_and_unload()", None),
        ("model = PeftModel.from_pretrained(model, 'sft', 'default', True)", 24),
        ("model = PeftModel.from_pretrained(model, model_id='sft', is_trainable=True)\nmodel.train()", 24),
        ("model = PeftModel.from_pretrained(model, 'sft')\nmodel.set_adapter('default')", 24),
        ("model = PeftModel.from_pretrained(model, 'sft')\nfor n, p in model.named_parameters():\n"
         "    if 'lora' in n.lower(): p.requires_grad = True", 24),
    ],
)  # fmt: skip
def test_merged_and_trained(tmp_path: Path, load: str, rank: int | None) -> None:
    save(tmp_path / "sft")
    job = parsed_of(tmp_path, "train.py", SCRIPT.replace("LOAD", load)).job
    assert (job["method"], job.get("lora_rank")) == (("full", None) if rank is None else ("lora", rank))


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        ("model = PeftModel.from_pretrained(model, 'sft')", "without is_trainable=True freezes the adapters"),
        ("model = PeftModel.from_pretrained(model, 'sft', is_trainable=f())", "is_trainable of PeftModel is not known"),
        (
            "model = PeftModel.from_pretrained(model, 'sft')\nfor n, p in model.named_parameters():\n"
            "    if 'lora' not in n: p.requires_grad = True",
            "requires_grad set by hand on adapters that PeftModel froze",
        ),
        (f"{LOAD}\nif f(): model = model.merge_and_unload()", "is called on the model is not known"),
        (f"{LOAD}\nfor p in model.parameters(): p.requires_grad = True", "by hand beside adapters is not modelled"),
        (f"{LOAD}\nmodel = get_peft_model(model, LoraConfig(r=4))", "adapters are added twice"),
        (LOAD.replace("is_trainable", "autocast_adapter_dtype=False, is_trainable"), "autocast_adapter_dtype"),
        (f"if f():\n    {LOAD}", "whether the adapters of sft are loaded is not known"),
        (f"if f():\n    {LOAD}\nelse: model = get_peft_model(model, LoraConfig())", "whether peft.get_peft_model()"),
        (LOAD.replace("'sft'", "sft"), "give --set lora_r=N"),
        (LOAD.replace("'sft'", "f(1)"), "give --set lora_r=N"),
    ],
)
def test_what_is_refused(tmp_path: Path, load: str, expected: str) -> None:
    save(tmp_path / "sft")
    with pytest.raises(VramplanError) as error:
        parsed_of(tmp_path, "train.py", SCRIPT.replace("LOAD", load))
    assert expected in error.value.spelled(spell_flag)
    assert "\x02" not in str(error.value).replace("\x02set", "")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"peft_type": "ADALORA"}, "peft_type ADALORA is not modelled"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern of the adapters"),
        ({"layers_to_transform": [1, 2]}, "layers_to_transform of the adapters"),
        ({"trainable_token_indices": [7]}, "trainable_token_indices of the adapters"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights pissa"),
        ({"a_key_of_later": True}, "a_key_of_later of the adapters"),
        ({"r": 0}, "r: expected a whole number"),
        ({"r": True}, "r: expected a whole number"),
        ({"r": "8"}, "r: expected a whole number"),
        ({"lora_dropout": 1.5}, "lora_dropout: expected a share"),
        ({"target_modules": None}, "the adapters name no layers"),
        ({"target_modules": [1]}, "target_modules: expected a list of names"),
        ({"target_modules": "("}, "is no regular expression"),
        ({"target_modules": r".*.*.*.*.*.*X"}, "too many repeats"),
        ({"target_modules": r"([a-z._]{1,3})+X"}, "too many repeats"),
        ({"target_modules": "(" * 9_000 + ")" * 9_000}, "too many repeats"),
        ({"target_modules": "a" * 30_000}, "too many repeats"),
        ({"target_modules": r"model\.layers\.[0-7]\.mlp\.up_proj"}, "means single layers"),
        ({"target_modules": r".*(q_proj|attn\.qkv)"}, "means a vision tower's layers"),
        ({"target_modules": ["model.layers.3.mlp.up_proj", "model.layers.4.mlp.up_proj"]}, "names single layers"),
        ({"target_modules": ["model.layers.0.mlp.up_proj", "lm_head"]}, "lm_head beside single layers"),
    ],
)
def test_adapters_that_are_not_modelled(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    save(tmp_path / "sft", **changes)
    with pytest.raises(VramplanError) as error:
        parsed_of(tmp_path, "train.py", FILES["train.py"])
    assert expected in str(error.value)
    assert "adapter_config.json" in str(error.value)


@pytest.mark.parametrize("content", ["", "[]", "{", '"a"', "[" * 100_000, "\x00", "7" * 2_000_000])
def test_a_broken_file_is_one_clear_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "sft").mkdir()
    (tmp_path / "sft" / "adapter_config.json").write_text(content)
    with pytest.raises(ConfigError) as error:
        parsed_of(tmp_path, "train.py", FILES["train.py"])
    assert "adapter_config.json" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("targets", "names", "sees"),
    [
        ("all-linear", None, False),
        (r".*\.(q_proj|v_proj)", ("q_proj", "v_proj"), True),
        (r"^(?!.*(?:vision_tower|visual)).*(?:k_proj|up_proj).*", ("k_proj", "up_proj"), False),
        ([f"model.layers.{n}.{m}" for n in range(3) for m in ("self_attn.q_proj", "mlp.up_proj")],
         ("q_proj", "up_proj"), False),
        (["o_proj", "mlp.up_proj"], ("mlp.up_proj", "o_proj"), True),
    ],
)  # fmt: skip
def test_targets_as_peft_saves_them(tmp_path: Path, targets: Any, names: tuple[str, ...] | None, sees: bool) -> None:
    """all-linear is saved as whole paths, a vision-language model's text layers as an expression."""
    save(tmp_path / "sft", target_modules=targets)
    job = parsed_of(tmp_path, "train.py", FILES["train.py"]).job
    assert job["lora_targets"] == names
    assert targets == "all-linear" or (job["vision"] == "lora") == sees


def test_llamafactory_merges_all_with_a_new_adapter_and_all_but_the_last_without(tmp_path: Path) -> None:
    text = FILES["llamafactory.yaml"]
    save(tmp_path / "sft")
    job = parsed_of(tmp_path, "a.yaml", f"{text}create_new_adapter: true\n").job
    assert (job["lora_rank"], job.get("lora_targets")) == (8, None)
    two = text.replace("adapter_name_or_path: sft", "adapter_name_or_path: base, sft")
    assert parsed_of(tmp_path, "b.yaml", two).job["lora_rank"] == 24
    zero3 = f"{text}create_new_adapter: true\ndeepspeed: examples/deepspeed/ds_z3_config.json\n"
    assert parsed_of(tmp_path, "c.yaml", zero3).job["lora_rank"] == 24
    full = text.replace("finetuning_type: lora", "finetuning_type: full")
    for broken in (f"{text}create_new_adapter: true\nquantization_bit: 4\n", f"{two}quantization_bit: 4\n", full):
        with pytest.raises(ConfigError, match="LLaMA-Factory stops at"):
            parsed_of(tmp_path, "d.yaml", broken)
    inner = f"{text}adapter_folder: inner\n"
    save(tmp_path / "sft" / "inner", r=5)
    assert parsed_of(tmp_path, "e.yaml", inner).job["lora_rank"] == 5


def test_axolotl_gives_trl_new_adapters_for_dpo(tmp_path: Path) -> None:
    save(tmp_path / "sft")
    parsed = parsed_of(tmp_path, "a.yaml", f"{FILES['axolotl.yaml']}rl: dpo\n")
    assert parsed.job["lora_rank"] == 8
    assert any("has no effect" in note.text and note.key == "lora_model_dir" for note in parsed.notes)
    assert parsed_of(tmp_path, "b.yaml", f"{FILES['axolotl.yaml']}rl: orpo\n").job["lora_rank"] == 24


def test_unsloth_stops_at_other_adapters_than_it_loaded(tmp_path: Path) -> None:
    save(tmp_path / "sft")
    adds = "model = FastLanguageModel.get_peft_model(model, r=24, target_modules=['q_proj', 'v_proj'])\ntrainer ="
    assert parsed_of(tmp_path, "a.py", UNSLOTH.replace("trainer =", adds, 1)).job["lora_rank"] == 24
    with pytest.raises(ConfigError, match="unsloth stops at other adapters"):
        parsed_of(tmp_path, "b.py", UNSLOTH.replace("trainer =", adds.replace("24", "16"), 1))


def test_a_trainer_that_gets_adapters_and_new_ones(tmp_path: Path) -> None:
    """TRL merged them before 0.27, and stops since."""
    text = FILES["train.py"].replace("train_dataset=data", "train_dataset=data, peft_config=LoraConfig(r=4)")
    with pytest.raises(ConfigError, match="stops at a model with adapters beside peft_config"):
        parsed_of(tmp_path, "train.py", text)
    path = tmp_path / "train.py"
    assert read_config(from_path(path, None, environment={}), 1, "0.24.0").job["lora_rank"] == 4


DPO = (
    SCRIPT.replace("SFT", "DPO")
    .replace("LOAD", LOAD)
    .replace("max_length=512", "max_length=512, OPTIONS")
    .replace("train_dataset=data", "train_dataset=data, processing_class=tokenizer")
)
SECOND = "model.load_adapter('sft', adapter_name='reference')"


def dpo(*lines: str, options: str = "") -> str:
    """A script with TRL's DPOTrainer and adapters of a folder."""
    return DPO.replace("OPTIONS", options).replace(LOAD, "\n".join((LOAD, *lines)))


@pytest.mark.parametrize(
    ("version", "trainer", "reference"),
    [
        ("1.16.0", "DPO", "frozen_adapters"), ("0.29.1", "DPO", "frozen_adapters"), ("0.28.0", "DPO", None),
        ("1.16.0", "KTO", "frozen_adapters"), ("1.5.0", "KTO", "frozen_adapters"), ("1.0.0", "KTO", None),
    ],
)  # fmt: skip
def test_trl_copies_adapters_that_are_there(tmp_path: Path, version: str, trainer: str, reference: str | None) -> None:
    """Before, the reference was the model without them; so it is of adapters that the trainer adds itself."""
    save(tmp_path / "sft")
    path = tmp_path / "train.py"
    path.write_text(dpo().replace("DPO", trainer))
    job = read_config(from_path(path, None, environment={}), 1, version).job
    assert job.get("reference") == reference
    added = dpo().replace(LOAD, "").replace("processing_class", "peft_config=LoraConfig(r=4), processing_class")
    path.write_text(added)
    assert "reference" not in read_config(from_path(path, None, environment={}), 1, version).job


@pytest.mark.parametrize(("beta", "reference"), [("", None), (", beta=0.04", "frozen_adapters")])
def test_grpo_copies_them_where_the_loss_has_a_reference(tmp_path: Path, beta: str, reference: str | None) -> None:
    save(tmp_path / "sft")
    text = FILES["train.py"].replace("SFT", "GRPO").replace("max_length=512", f"max_completion_length=64{beta}")
    text = text.replace("train_dataset", "reward_funcs=f, train_dataset")
    assert parsed_of(tmp_path, "a.py", text).job.get("reference") == reference
    rloo = text.replace("GRPO", "RLOO").replace(beta or "\0", ", beta=0.0")
    if beta:
        with pytest.raises(UnsupportedError, match="copies a model's adapters all the same"):
            parsed_of(tmp_path, "b.py", rloo)


def test_two_sets_on_one_base(tmp_path: Path) -> None:
    """DPO's ref_adapter_name, up to TRL 0.28."""
    save(tmp_path / "sft")
    options = "model_adapter_name='default', ref_adapter_name='reference'"
    parsed = parsed_of(tmp_path, "a.py", dpo(SECOND, options=options))
    assert (parsed.job["reference"], parsed.version) == ("frozen_adapters", "0.28.0 (from its model_adapter_name)")
    own = dpo(SECOND, options=options.replace("default", "train")).replace("is_train", "adapter_name='train', is_train")
    assert parsed_of(tmp_path, "b.py", own).job["reference"] == "frozen_adapters"
    save(tmp_path / "other")
    other = dpo(SECOND.replace("'sft'", "'other'"), options=options)
    assert parsed_of(tmp_path, "c.py", other).job["reference"] == "frozen_adapters"
    save(tmp_path / "other", r=4)
    for text, expected in (
        (other, "are not known to have rank and layers"),
        (dpo(options=options), "no adapters reference are loaded"),
        (dpo(SECOND), "which ref_adapter_name does not name"),
        (dpo(SECOND, options=options.replace("default", "train")), "TRL goes back to train"),
        (dpo(SECOND.replace(")", ", is_trainable=True)"), options=options), "two sets that train"),
        (FILES["train.py"].replace(LOAD, f"{LOAD}\n{SECOND}"), "load_adapter() beside adapters that train"),
        (dpo().replace("is_train", "adapter_name='train', is_train"), "stops at adapters that are not called default"),
        (dpo(options="precompute_ref_log_probs=True"), "keeps the copy that TRL 1.16.0 makes"),
    ):
        with pytest.raises(VramplanError) as error:
            parsed_of(tmp_path, "d.py", text)
        assert expected in str(error.value)


SWIFT = f"swift rlhf --rlhf_type dpo --model {MODEL} --tuner_type lora --adapters sft --max_length 512"


@pytest.mark.parametrize("kind", ["dpo", "kto", "grpo"])
def test_ms_swifts_reference_with_adapters(tmp_path: Path, kind: str) -> None:
    save(tmp_path / "sft")
    command = SWIFT.replace("dpo", kind) + (" --reward_funcs a --beta 0.04" if kind == "grpo" else "")
    job = parsed_of(tmp_path, "a.sh", command).job
    assert job.get("reference") in (None, "adapters_off")
    job = parsed_of(tmp_path, "a.sh", f"{command} --ref_adapters sft").job
    assert (job["reference"], job["lora_rank"]) == ("frozen_adapters", 24)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("--ref_adapters other", "are not known to have rank and layers"),
        ("--ref_adapters sft --deepspeed zero2", "under DeepSpeed or on several GPUs"),
        ("--ref_adapters sft other", "takes one"),
        ("--ref_adapters sft --rlhf_type orpo", "with rlhf_type dpo, kto, grpo alone"),
    ],
)
def test_ms_swifts_reference_that_is_refused(tmp_path: Path, more: str, expected: str) -> None:
    save(tmp_path / "sft")
    save(tmp_path / "other", r=4)
    with pytest.raises(VramplanError) as error:
        parsed_of(tmp_path, "a.sh", f"{SWIFT} {more}".replace("--rlhf_type dpo", "", "orpo" in more))
    assert expected in str(error.value)


def test_the_same_variable_is_the_same_folder_in_a_command(tmp_path: Path) -> None:
    text = f'{SWIFT} --ref_adapters "$RUN/last"'.replace("--adapters sft", '--adapters "$RUN/last"', 1)
    options = {"lora_rank": "8", "target_modules": "all-linear"}
    assert parsed_of(tmp_path, "a.sh", text, options).job["reference"] == "frozen_adapters"


@pytest.mark.parametrize(("beta", "reference"), [(0.04, "frozen_adapters"), (0, None)])
def test_axolotls_grpo_refers_to_a_copy_of_its_adapters(tmp_path: Path, beta: float, reference: str | None) -> None:
    """axolotl makes the adapters itself and hands TRL a model that has them (0.19, core/builders/rl.py)."""
    text = FILES["axolotl.yaml"].replace("lora_model_dir: sft\n", "")
    text += f"rl: grpo\ntrl:\n  beta: {beta}\n  max_completion_length: 64\n  num_generations: 2\n"
    assert parsed_of(tmp_path, "a.yaml", text).job.get("reference") == reference


def test_a_folder_of_adapters_is_no_model(tmp_path: Path) -> None:
    from vramplan.errors import SpecError
    from vramplan.inputs.load import load_model

    save(tmp_path / "sft")
    with pytest.raises(SpecError, match="it holds adapters: name the model that they are of"):
        load_model(str(tmp_path / "sft"))
