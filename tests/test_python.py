"""Scripts and notebooks: what is read is what a run would have, or not known; nothing runs, nothing takes long."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.python_cases import FOLDER, HEAD, MAKE, TAIL, cases
from tests.python_generator import script
from tests.python_referee import referee
from vramplan.errors import ConfigError, UnsupportedError, VramplanError
from vramplan.frameworks.detect import from_path
from vramplan.frameworks.readers.python_script import settings_of
from vramplan.frameworks.run_python import run_script
from vramplan.frameworks.settings import ConfigValue
from vramplan.frameworks.syntax.notebook import of_notebook
from vramplan.frameworks.syntax.python.f_strings import without_new_f_strings
from vramplan.frameworks.syntax.python_ast import read_script
from vramplan.frameworks.syntax.shell import UNKNOWN

resource = pytest.importorskip("resource")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the referee forks")
LOAD = HEAD[: HEAD.index("model =")]
MODEL = HEAD[HEAD.index("model =") :]


def read(text: str, flags: dict[str, Any] | None = None) -> dict[str, Any]:
    """The settings of a script."""
    return {key: value.value for key, value in settings_of(read_script(text, "train.py", flags))[1].items()}


# -- the referee -------------------------------------------------------------------------------------------------------


def test_hand_made_scripts_read_as_they_run(tmp_path: Path) -> None:
    counts, stale = referee(cases(), tmp_path)
    assert not stale
    assert counts["runs"] > 300
    assert counts["known values"] > 0.9 * (counts["known values"] + counts["unknown values"])


def test_generated_scripts_read_as_they_run(tmp_path: Path) -> None:
    counts, stale = referee([(script(seed), ()) for seed in range(80)], tmp_path)
    assert not stale
    assert counts["runs"] > 60
    assert counts["known values"] > 0.75 * (counts["known values"] + counts["unknown values"])


@pytest.mark.full
def test_many_generated_scripts_read_as_they_run(tmp_path: Path) -> None:
    counts, stale = referee([(script(seed), ()) for seed in range(10_000, 10_250)], tmp_path)
    assert not stale
    assert counts["runs"] > 200


def test_the_referee_sees_a_stale_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vramplan.frameworks.syntax.python.follow import Follower

    monkeypatch.setattr(Follower, "put", lambda self, id, key, value: self.change(id, key).slots.setdefault(key, value))
    _, stale = referee([(f"{HEAD}bs = 64\n{MAKE}{TAIL}", ())], tmp_path)
    assert stale


# -- what is done to the model -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("model = model.float()", "train.py:10: model.float() after loading (float32) is not modelled"),
        ("model.to(torch.float16)", "model.to() after loading (float16) is not modelled"),
        ("model.resize_token_embeddings(50000)", "resize_token_embeddings is modelled only for len(tokenizer)"),
        ("model = torch.compile(model)", "torch.compile() takes the model"),
        ("model.lm_head = f()", "lm_head of the model is set"),
        ("model.config.output_hidden_states = True", "config.output_hidden_states of the model is set"),
        ("model.model.layers.half()", "half() on parts of the model"),
        ("for p in model.parameters(): p.requires_grad = False", "requires_grad set by hand"),
        ("if f(): model = get_peft_model(model, LoraConfig())", "whether peft.get_peft_model() is called"),
        ("model = get_peft_model(model, c)\nmodel = get_peft_model(model, c)", "adapters are added twice"),
        ("model = PeftModel.from_pretrained(model, 'adapters')", "without is_trainable=True freezes the adapters"),
        ("model = f(model)", "f() takes the model"),
        ("model = AutoModelForCausalLM.from_config(c)", "from_config is not read yet"),
        ("model = f()", "the model that is trained (model=model) is not known"),
        ("if f(): model = AutoModelForCausalLM.from_pretrained('a/b')", "which model is trained is not known"),
    ],
)
def test_what_is_refused_by_name(line: str, expected: str) -> None:
    with pytest.raises(VramplanError) as error:
        read(f"{LOAD}{MODEL.splitlines()[0]}\n{line}\n{MAKE.replace('bs', '1')}{TAIL}")
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "line",
    [
        "model.config.use_cache = False",
        "model.to('cuda')",
        "model.to(device)",
        "model.bfloat16()",
        "model.enable_input_require_grads()",
        "model.print_trainable_parameters()",
        "tokenizer.add_special_tokens({'pad_token': '[PAD]'})\nmodel.resize_token_embeddings(len(tokenizer))",
        "print(model)",
        "model.gradient_checkpointing_enable()\nmodel.gradient_checkpointing_disable()",
        "for p in model.parameters(): p.requires_grad = False\nmodel = get_peft_model(model, LoraConfig(r=4))",
        "model = get_peft_model(model, LoraConfig(r=4)).merge_and_unload()",
    ],
)
def test_what_changes_no_memory(line: str) -> None:
    found = read(f"{HEAD}{line}\n{MAKE}{TAIL}")
    assert found["per_device_train_batch_size"] == 4
    assert not found.get("gradient_checkpointing")


def test_checkpointing_that_is_turned_on_stays_on() -> None:
    """The Trainer turns it on by its arguments, never off (transformers 5.23, trainer.py: _inner_training_loop)."""
    make = MAKE.replace(")\n", ", gradient_checkpointing=False)\n")
    assert read(f"{HEAD}model.gradient_checkpointing_enable()\n{make}{TAIL}")["gradient_checkpointing"] is True


def test_arguments_set_behind_the_trainer_are_not_known() -> None:
    late = TAIL.replace("trainer.train()", "trainer.args.per_device_train_batch_size = 64\ntrainer.train()")
    assert UNKNOWN in read(f"{HEAD}{MAKE}{late}")["per_device_train_batch_size"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from trl import XPOTrainer\nXPOTrainer(model='a')", "XPOTrainer: this kind of training is not read yet"),
        ("import lightning as L\nL.Trainer().fit(m)", "lightning's Trainer is not read yet"),
        ("m = SentenceTransformer('a')\nm.fit(train_objectives=[(a, b)])", "fit() is not read"),
        ("from sentence_transformers import SparseEncoderTrainer as T\nT(m)", "(sentence-transformers)"),
        ("from sentence_transformers import SentenceTransformerTrainer as T\nT(m)", "no SentenceTransformer that is"),
        ("loss = model(x).loss\nloss.backward()", "a training loop of its own"),
        ("from diffusers import FluxTrainer\nFluxTrainer().train()", "FluxTrainer is not read yet"),
        (
            f"{LOAD}def unused():\n    Trainer(model='a', args=TrainingArguments('o'))",
            "in a function that nothing here",
        ),
        (
            f"{HEAD}{MAKE}{TAIL}args = TrainingArguments('b')\n{TAIL}",
            "train.py:12: trains in lines 12 and 15, with settings that differ (per_device_train_batch_size: 4,",
        ),
        (f"{HEAD}{MAKE}Trainer(model=model, args=args, compute_loss_func=f).train()", "a loss of its own"),
        (f"{HEAD}{MAKE}Trainer(model=model, args=args, optimizers=(f(), None)).train()", "its own optimizer"),
        (f"{HEAD}class T(Trainer):\n    def training_step(self): 0\n{MAKE}T(model, args).train()", "own training_step"),
        (f"{HEAD}{MAKE}g(args)\n{TAIL}", "TrainingArguments: g(args) may change it"),
        ("x = 9" + "9" * 5000, "is no Python"),
    ],
)
def test_trainings_that_are_refused(text: str, expected: str) -> None:
    with pytest.raises(VramplanError) as error:
        read(text)
    assert expected in str(error.value)


def test_two_arguments_and_one_trainer() -> None:
    text = f"{HEAD}{MAKE}other = TrainingArguments('b', per_device_train_batch_size=9)\n{TAIL}"
    assert read(text)["per_device_train_batch_size"] == 4


# -- command lines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "import fire\ndef main(bs=2):\n{body}\nfire.Fire(main)",
        "import typer\ndef main(bs: int = typer.Option(2)):\n{body}\ntyper.run(main)",
        "import typer\napp = typer.Typer()\n@app.command()\ndef main(bs: int = 2):\n{body}\napp()",
        "import click\n@click.command()\n@click.option('--bs', default=2)\ndef main(bs):\n{body}\nmain()",
        "import tyro\n@dataclass\nclass A:\n    bs: int = 2\nbs = tyro.cli(A).bs\nif True:\n{body}",
    ],
)
def test_parameters_of_a_command(body: str) -> None:
    from vramplan.frameworks.settings import ConfigValue

    inner = "".join(f"    {line}\n" for line in (MAKE + TAIL).splitlines())
    text = HEAD.replace("bs = 4\n", "") + body.replace("{body}", inner)
    assert read(text)["per_device_train_batch_size"] == 2
    assert read(text, {"bs": ConfigValue("8", "--bs")})["per_device_train_batch_size"] == 8


def test_hydra_is_not_known() -> None:
    inner = "".join(f"    {line}\n" for line in (MAKE.replace("bs)", "cfg.bs)") + TAIL).splitlines())
    text = f"{HEAD}import hydra\n@hydra.main(config_path='c')\ndef main(cfg):\n{inner}\nmain()"
    assert UNKNOWN in read(text)["per_device_train_batch_size"]


# -- notebooks ---------------------------------------------------------------------------------------------------------


def notebook(*sources: str, as_list: bool = False) -> str:
    """A notebook's JSON."""
    cells = [
        {"cell_type": "code", "source": source.splitlines(keepends=True) if as_list else source, "outputs": [{"a": 1}]}
        for source in sources
    ]
    return json.dumps({"cells": [{"cell_type": "markdown", "source": "# text"}, *cells], "nbformat": 4})


@pytest.mark.parametrize(
    "cell",
    [
        "%cd /content\n!pip install x\n?print\nprint?\nx = !ls\ny = %time 1",
        "if True:\n    !pip install x\nelse:\n    %pip install y",
        "try:\n    import x\nexcept ImportError:\n    !pip install x \\\n        y \\\n        z",
        "%%capture\nimport os, re\nif 'COLAB_' not in ''.join(os.environ.keys()):\n    !pip install unsloth",
        "%%bash\nfor i in 1 2; do echo $i; done",
        "%%writefile train.py\nnot python at all (",
        "%%html\n<b>hello</b>",
        "text = '''\n!not a command\n%neither\n'''\nx = (5\n  % 2)\n!ls",
        "%env A=1\nget_ipython().system('ls')\n%matplotlib inline\n%time x = 3",
        "await thing()",
        "",
    ],
)
@pytest.mark.parametrize("as_list", [False, True])
def test_magics_leave_python(cell: str, as_list: bool) -> None:
    text = of_notebook(notebook(cell, "x = 5", as_list=as_list), "a.ipynb")
    compile(text, "a.py", "exec", flags=8192)  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    (call,) = read_script(f"{text}\nf(x=x)", "a.py").named("f")
    assert call.keywords["x"].value == 5
    assert text.count("\n") >= cell.count("\n")


def test_magics_that_bind_names() -> None:
    text = of_notebook(notebook("n = 1\nm = 2", "n = !ls\n%env BS=4\nimport os\nk = int(os.environ['BS'])"), "a.ipynb")
    (call,) = read_script(f"{text}\nf(n=n, k=k, m=m)", "a.py").named("f")
    assert UNKNOWN in call.keywords["n"].value
    assert (call.keywords["k"].value, call.keywords["m"].value) == (4, 2)
    run = of_notebook(notebook("n = 1", "%run other.py"), "a.ipynb")
    assert UNKNOWN in read_script(f"{run}\nf(n=n)", "a.py").named("f")[0].keywords["n"].value


def test_older_notebooks() -> None:
    old = {"worksheets": [{"cells": [{"cell_type": "code", "input": ["x = 1\n", "y = 2"]}]}], "nbformat": 3}
    assert of_notebook(json.dumps(old), "a.ipynb") == "x = 1\ny = 2"


def test_a_broken_cell_is_named() -> None:
    with pytest.raises(ConfigError, match=re.escape("a.ipynb: cell 3, line 2: is no Python")):
        of_notebook(notebook("x = 1", "y = 2\nmodel.half( = 3"), "a.ipynb")


CELL_LINES = ["!ls \\", "%%bash", "if x:", "    !a", "'''", "x = (", "%time x", "a?", ")"]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(CELL_LINES), st.text(max_size=8)), max_size=8))
def test_any_cell_reads(lines: list[str]) -> None:
    try:
        read_script(of_notebook(notebook("\n".join(lines)), "a.ipynb"), "a.ipynb")
    except VramplanError as error:
        assert "\n" not in str(error)  # noqa: PT017


SNIPPETS = [part for name in ("values", "arguments", "models", "trainers") for part in
            (FOLDER / f"{name}.txt").read_text().split("\n----\n")]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(SNIPPETS), max_size=6), st.integers(0, 400), st.text(max_size=3))
def test_any_mixture_reads(parts: list[str], cut: int, noise: str) -> None:
    text = "\n".join([HEAD, *parts, MAKE, TAIL])
    for version in (text, text[:-cut] + noise + text[-cut // 2 :] if cut else text):
        try:
            read(version)
        except VramplanError as error:
            assert "\n" not in str(error)  # noqa: PT017


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "a = 'x'\n" + "a = a + a\n" * 60,
        "a = [1]\n" + "a = [a, a]\n" * 60 + "f(x=a)\n",
        "a = (1,)\n" + "a = (a, a)\n" * 60 + "f(x=a)\nb = a == a\n",
        "a = [0] * 10**10\nf(x=a)",
        "x = " + "(" * 100_000 + ")" * 100_000,
        "x = 1" + "+1" * 50_000,
        "x = a" + ".b" * 50_000,
        "x = int('" + "9" * 5_000 + "')\ny = 9**9**9\nz = 1 << 10**9\nw = '%099999999d' % 1",
        "a = 1\n" * 700_000,
        "\n".join(f"def f{i}():\n f{i + 1}(); f{i + 1}()" for i in range(60)) + "\nf0()\n",
        "def f(n):\n return f(n - 1) + f(n - 2)\nf(30)\n",
        "".join(" " * i + f"for i{i} in range(60):\n" for i in range(18)) + " " * 18 + "a = 1\n",
        "x = [a + b + c for a in range(99) for b in range(99) for c in range(99)]",
        "a = []\na.append(a)\nf(x=a)\nd = {}\nd['d'] = d\nf(**d)\nprint(a == a)\n",
        "x = ','.join(['a' * 90_000] * 90_000)\ny = ('a' * 90_000).replace('a', 'b' * 90_000)",
        "while True:\n    pass\n",
        "a = 1\x00",
    ],
)
def test_no_script_takes_long(text: str) -> None:
    start = time.process_time()
    try:
        read_script(text, "a.py")
    except VramplanError as error:
        assert "\n" not in str(error)  # noqa: PT017
    assert time.process_time() - start < 2


def test_a_dictionary_that_changes_behind_the_arguments() -> None:
    make = MAKE.replace(")", ", gradient_checkpointing_kwargs=kwargs)")
    text = f"{HEAD}kwargs = {{'use_reentrant': True}}\n{make}kwargs['use_reentrant'] = False\n{TAIL}"
    assert read(text)["gradient_checkpointing_kwargs"] == {"use_reentrant": False}
    text = f"{HEAD}names = ['q_proj']\nconfig = LoraConfig(target_modules=names)\nnames.append('k_proj')\n"
    assert read(f"{text}model = get_peft_model(model, config)\n{MAKE}{TAIL}")["lora_target_modules"] == ["q_proj"]


def test_a_list_that_may_be_empty_is_not_known_to_be_true() -> None:
    loop = "errors = []\nfor n in (1, 2):\n    if f(n):\n        errors.append(n)\nif errors:\n    bs = 8\n"
    text = f"{HEAD}{loop}{MAKE}{TAIL}"
    assert UNKNOWN in read(text)["per_device_train_batch_size"]


def test_objects_that_may_be_empty_are_not_known_to_be_true() -> None:
    text = f"{HEAD}from collections import Counter\nif Counter():\n    bs = 8\n{MAKE}{TAIL}"
    assert UNKNOWN in read(text)["per_device_train_batch_size"]
    assert read(text.replace("Counter():", "LoraConfig():"))["per_device_train_batch_size"] == 8


def test_a_script_that_ends_without_flags_says_so() -> None:
    flag = "p = argparse.ArgumentParser()\np.add_argument('--go', action='store_true')\nif not p.parse_args().go:\n"
    text = f"{HEAD}{flag}    raise ValueError('give --go')\n{MAKE}{TAIL}"
    with pytest.raises(ConfigError) as error:
        read(text)
    assert "train.py:14: ends with ValueError('give --go'), before it trains; if flags avoid that" in str(error.value)
    assert read(text, {"go": ConfigValue(True, "--go")})["per_device_train_batch_size"] == 4


# -- what acts on every model ------------------------------------------------------------------------------------------

CALLBACK = (
    "class C(TrainerCallback):\n    def on_train_begin(self, args, state, control, model=None, **kwargs):\n        "
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "torch.set_default_dtype(torch.bfloat16)",
            "torch.set_default_dtype(bfloat16) is not modelled; give the dtype",
        ),
        ("transformers.LlamaForCausalLM.forward = f", "transformers.LlamaForCausalLM.forward is set"),
        ("transformers.models.llama.modeling_llama.apply_rotary_pos_emb = f", "apply_rotary_pos_emb is set"),
        ("setattr(transformers.Trainer, 'compute_loss', f)", "transformers.Trainer.compute_loss is set"),
        ("from patch import replace_llama_attn_with_flash_attn as r\nr()", "seems to replace code of a library"),
        ("from liger_kernel.transformers import apply_liger_kernel_to_llama as a\na()", "give use_liger_kernel=True"),
        ("torch.backends.cuda.enable_flash_sdp(False)\ntorch.backends.cuda.enable_mem_efficient_sdp(False)", "eager"),
        (f"{CALLBACK}model.gradient_checkpointing_enable()\nC()", "model.gradient_checkpointing_enable in a callback"),
        (f"{CALLBACK.replace('model=None, ', '')}kwargs['model'].float()\nC()", "model.float in a callback"),
        (
            f"{CALLBACK}args.per_device_train_batch_size = 64\nC()",
            "args.per_device_train_batch_size is set in a callback",
        ),
        (f"{CALLBACK}for p in model.parameters(): p.requires_grad = True\nC()", "changes the model in training"),
        (f"{CALLBACK}for p in model.parameters(): p.data = p.data.to(torch.float32)\nC()", "changes the model"),
        (
            f"{CALLBACK}model.save_pretrained('o'); args.save_steps = 5; model.config.use_cache = True\nC()",
            None,
        ),
        ("torch.set_default_dtype(torch.float32)\ntorch.backends.cuda.matmul.allow_tf32 = True", None),
        ("torch.nn.Linear.reset_parameters = f\ntransformers.logging.set_verbosity_error()", None),
        ("torch.backends.cuda.enable_mem_efficient_sdp(False)", None),
    ],
)
def test_what_acts_on_every_model(line: str, expected: str | None) -> None:
    text = f"{HEAD}{line}\n{MAKE}{TAIL}"
    if expected is None:
        assert read(text)["per_device_train_batch_size"] == 4
        return
    with pytest.raises(UnsupportedError, match=re.escape(expected)):
        read(text)


# -- imports, commands, environment ------------------------------------------------------------------------------------

STAR = """from transformers import *
bs = 4
args = TrainingArguments(output_dir="o", per_device_train_batch_size=bs)
trainer = Trainer(model=AutoModelForCausalLM.from_pretrained("a/b"), args=args)
trainer.train()
"""


def test_names_of_a_star_import() -> None:
    assert read(STAR)["per_device_train_batch_size"] == 4
    assert read(f"from peft import *\nfrom trl import *\n{STAR}")["per_device_train_batch_size"] == 4
    own = STAR.replace("bs = 4\n", "bs = 4\nfrom settings import *\n")
    assert UNKNOWN in read(own)["per_device_train_batch_size"]
    seeded = STAR.replace("bs = 4\n", "seed = 4\nfrom torch import *\nbs = seed\n")
    assert UNKNOWN in read(seeded)["per_device_train_batch_size"]
    assert read(f"from math import *\n{STAR.replace('bs = 4', 'bs = 2')}")["per_device_train_batch_size"] == 2


PARSED = """from dataclasses import dataclass, field
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
@dataclass
class Own:
    name: str = field(default="a/b")
own, args = HfArgumentParser((Own, TrainingArguments)).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(own.name)
Trainer(model=model, args=args).train()
"""


def test_arguments_of_a_command_that_is_not_known() -> None:
    with pytest.raises(ConfigError) as error:
        read(PARSED)
    assert str(error.value) == (
        "train.py:6: takes its settings from the command line; check the command: vramplan check -- python train.py"
        " --flag ..."
    )
    assert "per_device_train_batch_size" not in read(PARSED, {}), "a command without flags has the defaults"
    both = PARSED.replace("own, args", "import sys\nif len(sys.argv) == 2:\n    own, args = f()\nelse:\n  own, args")
    with pytest.raises(ConfigError, match=r"train\.py:10: takes its settings from the command line"):
        read(both)
    literal = PARSED.replace("(Own, TrainingArguments)", "Own").replace("own, args", "own,")
    literal = literal.replace("model =", "args = TrainingArguments('o', per_device_train_batch_size=2)\nmodel =")
    assert read(literal)["per_device_train_batch_size"] == 2


def test_a_script_that_may_read_a_file_instead_of_flags() -> None:
    branch = (
        "import sys\nif len(sys.argv) == 2 and sys.argv[1].endswith('.json'):\n    own, args = f()\nelse:\n  own, args"
    )
    text = PARSED.replace("own, args", branch)
    flags = {name: ConfigValue("4", name) for name in ("per_device_train_batch_size", "gradient_accumulation_steps")}
    assert read(text, flags)["per_device_train_batch_size"] == "4"
    for few in ({}, dict(list(flags.items())[:1])):
        with pytest.raises(ConfigError, match="not known without running"):
            read(text, few)


def test_a_loop_over_settings_says_what_to_do() -> None:
    loop = f"{HEAD}for bs in (1, 2):\n    {MAKE.strip()}\n    Trainer(model=model, args=args).train()\n"
    with pytest.raises(ConfigError) as error:
        read(loop)
    assert "trains in a loop, 2 times, with settings that differ (per_device_train_batch_size: 1, 2);" in str(
        error.value
    )
    assert "keep one turn of the loop" in str(error.value)


@pytest.mark.parametrize("code", ["int(os.environ['BS'])", "int(os.getenv('BS', '2'))", "int(os.environ.get('BS', 2))"])
def test_variables_that_are_set(code: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"import os\n{HEAD}bs = {code}\n{MAKE}{TAIL}")
    assert from_path(path, None, {"BS": "16"}).source.settings["per_device_train_batch_size"].value == 16
    (tmp_path / "run.sh").write_text(f"BS=32 python {path}\n")
    assert from_path(tmp_path / "run.sh", None, {"BS": "16"}).source.settings["per_device_train_batch_size"].value == 32
    unset = from_path(path, None, {}).source.settings["per_device_train_batch_size"].value
    assert UNKNOWN in str(unset) if "[" in code else unset == 2


# -- runs --------------------------------------------------------------------------------------------------------------


def test_a_run_tells_what_reading_cannot(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    (tmp_path / "sizes.json").write_text('{"bs": 3}')
    path.write_text(f"{HEAD}bs = json.load(open('sizes.json'))['bs']\nargs = int(sys.argv[1])\n"
                    f"{MAKE.replace(')', ', max_steps=args)')}{TAIL}raise SystemError\n")  # fmt: skip
    run = run_script(path, ["7"])
    values = {key: value.value for key, value in run.settings.items()}
    assert (run.framework, values["per_device_train_batch_size"], values["max_steps"]) == ("transformers", 3, 7)
    assert values["dtype"] == "bfloat16"
    assert not run.guesses


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 / 0", "failed before train(): ZeroDivisionError: division by zero"),
        ("print('hello')", "no Trainer was constructed"),
        ("import sys\nsys.exit('no data')", "failed before train(): no data"),
        ("def f(:", "failed before train(): SyntaxError"),
        ("while True: pass", "ran for 1 s and did not reach train()"),
    ],
)
def test_runs_that_fail(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(expected)):
        run_script(path, time_limit=1 if "while" in text else 20)


def test_a_run_says_where_a_stand_in_decided(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"{HEAD}if len(load_dataset('a')) > 5:\n    bs = 2\n{MAKE}{TAIL}")
    (guess,) = run_script(path).guesses
    assert guess.startswith(f"{path}:11: ")


def test_a_run_refuses_as_reading_does(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"{HEAD}model = model.float()\n{MAKE}{TAIL}")
    with pytest.raises(UnsupportedError, match="after loading"):
        run_script(path)


@pytest.mark.parametrize("path", sorted((Path(__file__).parent / "configs").glob("*/*.py")), ids=lambda path: path.name)
def test_realistic_scripts_are_known(path: Path) -> None:
    try:
        found = from_path(path, None, {}).source.settings
    except VramplanError:
        return
    unknown = [key for key, value in found.items() if UNKNOWN in str(value.value)]
    assert len(unknown) <= 0.15 * len(found) or path.name in ("unknown.py", "full_hf.py")


@pytest.mark.parametrize("line", ["transformers.LlamaForCausalLM.forward = f", "transformers.models.llama.f = f"])
def test_a_run_refuses_a_patched_library(line: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"import transformers\nf = None\n{HEAD}{line}\n{MAKE}{TAIL}")
    with pytest.raises(UnsupportedError, match="is set, so that the library computes something else"):
        run_script(path)


def test_a_run_has_the_defaults_of_the_installed_package(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"{HEAD}bs = 3 if TrainingArguments('o').max_grad_norm == 1.0 else 7\n{MAKE}{TAIL}")
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    run = run_script(path)
    assert run.settings["per_device_train_batch_size"].value == 3
    assert not run.guesses


def test_a_notebook_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="notebooks are not run; check it without --exec"):
        run_script(tmp_path / "train.ipynb")


def test_a_run_keeps_little_of_what_it_writes(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import sys\nfor _ in range(300):\n    sys.stderr.write('x' * (1 << 20))\n    print('y' * (1 << 20))\n1 / 0"
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        run_script(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << (20 if sys.platform == "darwin" else 10)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory")
def test_a_run_has_a_limit_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("x = bytearray(64 << 30)")
    with pytest.raises(ConfigError, match="MemoryError"):
        run_script(path)


def test_processes_of_a_run_end_with_it(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n1 / 0"
    )
    start = time.monotonic()
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        run_script(path)
    assert time.monotonic() - start < 20


# -- files and cells of notebooks --------------------------------------------------------------------------------------

SWIFT = "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\nper_device_train_batch_size: 3\n"
DUMPED = (
    "args = dict(model_name_or_path='Qwen/Qwen2.5-0.5B', stage='sft', per_device_train_batch_size=2)\nimport json\n"
)
LAUNCH = "!llamafactory-cli train conf/a.json"


def notebook_of(folder: Path, *cells: str) -> Path:
    """A notebook of these cells."""
    path = folder / "train.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in cells]}))
    return path


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ((f"%%writefile conf/a.json\n{SWIFT}", LAUNCH), 3),
        ((f"{DUMPED}json.dump(args, open('conf/a.json', 'w'), indent=2)", LAUNCH), 2),
        ((f"{DUMPED}with open('/content/conf/a.json', 'w') as f:\n    json.dump(args, f)", LAUNCH), 2),
        ((f"text = {SWIFT!r}\nwith open('conf/a.json', 'w') as f:\n    f.write(text)", LAUNCH), 3),
        ((f"{DUMPED}if f():\n    json.dump(args, open('conf/a.json', 'w'))", LAUNCH), None),
        ((f"%%writefile conf/a.json\n{SWIFT}", f"%%writefile -a conf/a.json\n{SWIFT}", LAUNCH), None),
        ((f"{DUMPED}args = f()\njson.dump(args, open('conf/a.json', 'w'))", LAUNCH), None),
        ((f"{DUMPED}json.dump(args, open('conf/a.json', 'w'))\nargs['per_device_train_batch_size'] = 4\n"
          "json.dump(args, open('conf/a.json', 'w'))", LAUNCH), None),
    ],
)  # fmt: skip
def test_files_that_a_notebook_writes(cells: tuple[str, ...], expected: int | None, tmp_path: Path) -> None:
    path = notebook_of(tmp_path, *cells)
    if expected is None:
        with pytest.raises(ConfigError, match="what the notebook writes to it is not known"):
            from_path(path, None, {})
        return
    config = from_path(path, None, {})
    assert config.framework.name == "llamafactory"
    assert config.source.settings["per_device_train_batch_size"].value == expected


def test_a_script_that_a_notebook_writes(tmp_path: Path) -> None:
    path = notebook_of(tmp_path, f"%%writefile train.py\n{HEAD}{MAKE}{TAIL}", "!accelerate launch train.py")
    assert from_path(path, None, {}).source.settings["per_device_train_batch_size"].value == 4


def test_cells_that_are_no_python(tmp_path: Path) -> None:
    training = f"{HEAD}{MAKE}{TAIL}"
    path = notebook_of(tmp_path, "for step in range(10)\n    print(step)", training)
    assert from_path(path, None, {}).source.settings["per_device_train_batch_size"].value == 4
    path = notebook_of(tmp_path, HEAD, "bs = 8\nprint(bs", f"{MAKE}{TAIL}")
    assert UNKNOWN in str(from_path(path, None, {}).source.settings["per_device_train_batch_size"].value)
    path = notebook_of(tmp_path, HEAD, "model.float(", f"{MAKE}{TAIL}")
    with pytest.raises(ConfigError, match="cell 2, line 1: is no Python"):
        from_path(path, None, {})


@pytest.mark.parametrize(
    "text",
    ['f"{d["a"]}"', "f'{a['b']}' 'q'", 'f"{x:>{w}} {d["k"]!r:10}"', "f'{\"\\n\".join(x)}'", 'f"{f"{f"{1}"}"}"',
     'f"{a["""k"""]}"', 'rf"\\d{d["x"]}"', 'f"{{}} {d["x"]}"', 'f"{d["a"]\n}"', 'f"""{\nd["a"]}"""'],
)  # fmt: skip
def test_f_strings_of_a_newer_python(text: str) -> None:
    assert len(without_new_f_strings(f"x = {text}\ny = 1").split("\n")) == len(f"x = {text}\ny = 1".split("\n"))
    ast.parse(without_new_f_strings(f"x = {text}"))
    assert read(f"{HEAD}name = {text}\n{MAKE}{TAIL}")["per_device_train_batch_size"] == 4


@pytest.mark.parametrize("text", ["'it''s # no' # f\"{", 'f"{x:%H:%M} {y!r}" + "{"', "f\"{x['a']}\"", 'f"{'])
def test_other_strings_stay(text: str) -> None:
    assert without_new_f_strings(text) == text
