"""The site in headless Chromium: random jobs equal to the command line's answers to the byte.

``VRAMPLAN_SITE_PARTS`` is the folder with the downloaded parts (vramplan/site/parts.json); without it, or without
Chromium, there is nothing to run.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import browser
from tests.helpers import cli
from vramplan.inputs.catalog import all_gpus, model_names
from vramplan.render.verdict import need_of_capacity
from vramplan.site import build

PARTS = os.environ.get("VRAMPLAN_SITE_PARTS", "")
pytestmark = [
    pytest.mark.skipif(browser.CHROMIUM is None, reason="Chromium is not installed"),
    pytest.mark.skipif(not PARTS, reason="VRAMPLAN_SITE_PARTS names no folder of parts"),
]
NUM_JOBS = int(os.environ.get("VRAMPLAN_SITE_JOBS", "20"))


def random_line(choose: random.Random) -> list[str]:
    """A job as the page's controls make them; some of them cannot run, and are refused in one line."""
    words = [choose.choice(MODELS), "--gpu", choose.choice(GPUS)]
    words = ["suggest", *words, "--global-batch", choose.choice(("8", "16"))] if choose.random() < 0.3 else [
        "estimate", *words, "--micro-batch", choose.choice(("1", "2", "5"))
    ]  # fmt: skip
    for flag, values in CONTROLS.items():
        if choose.random() < 0.4:
            words += [flag, choose.choice(values)]
    return [*words, "--json"]


CONTROLS = {
    "--method": ("full", "lora", "qlora", "dora"),
    "--seq-len": ("512", "1000", "4096"),
    "--lora-rank": ("4", "64"),
    "--checkpointing": ("none", "full"),
    "--loss": ("standard", "liger", "cut"),
    "--attention": ("sdpa", "eager"),
    "--optimizer": ("adamw_torch_fused", "adamw_8bit", "sgd"),
    "--num-gpus": ("1", "4"),
    "--strategy": ("ddp", "fsdp", "zero2", "zero3"),
}
MODELS = [name for name in model_names() if "72B" not in name and "70B" not in name and "405B" not in name]
GPUS = [gpu.name for gpu in all_gpus()]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build.build(folder, Path(PARTS))
    return folder


def answers_of(
    site: Path, lines: Sequence[Sequence[str]], files: Sequence[dict[str, str]] = ()
) -> list[dict[str, object]]:
    """The worker's answers, in the order of the lines."""
    requests = [{"words": line, "files": dict(files[i]) if files else {}} for i, line in enumerate(lines)]
    answers: list[dict[str, object]] = []
    for told in browser.ask(site, requests):
        assert "failure" not in told.data, told.data["failure"]
        if "answer" in told.data:
            assert told.data["id"] == len(answers)
            answers.append(told.data["answer"])
    return answers


def test_random_jobs_are_equal_to_the_byte(site: Path) -> None:
    choose = random.Random(22)
    lines = [random_line(choose) for _ in range(NUM_JOBS)]
    answers = answers_of(site, lines)
    for line, answer in zip(lines, answers, strict=True):
        printed = cli(*line)
        expected = {"code": printed.returncode, "text": printed.stdout, "error": printed.stderr, "files": {}}
        assert answer == expected, " ".join(line)
    assert 0 < sum(answer["code"] == 2 for answer in answers) < NUM_JOBS


CONFIG = json.dumps({"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2})


def test_a_broken_configuration_is_one_line(site: Path) -> None:
    line = ["estimate", "config.json", "--gpu", "rtx4090", "--json"]
    broken, lacking = answers_of(site, [line, line], [{"config.json": "{"}, {"config.json": CONFIG}])
    for answer in (broken, lacking):
        assert (answer["code"], answer["text"]) == (2, "")
        assert str(answer["error"]).startswith("vramplan: config.json")
        assert str(answer["error"]).count("\n") == 1


def figures(*words: str) -> tuple[str, str]:
    """(need, capacity) as the command line gives them for a search: those that the page shows."""
    found = json.loads(cli("suggest", *words, "--json").stdout)
    return need_of_capacity(found["estimate"]["device_total_bytes"], found["capacity_bytes"])


def test_a_visitor_changes_every_control(site: Path) -> None:
    """Each control changes the command line and is answered; back and forward give the states between."""
    sent = browser.visit(
        site,
        """
await answered();
await send({ step: "start", head: head() });
const changes = [["tokens", "12"], ["method", "qlora"], ["rank", "32"], ["gpu", "l40s"], ["batch", "8"], ["gpus", "2"],
  ["strategy", "zero3"], ["offload", "optimizer"], ["loss", "liger"], ["optimizer", "adamw_8bit"],
  ["checkpointing", "none"], ["attention", "eager"], ["quantize", "nf4"], ["dtype", "fp16"], ["batches", "padded"],
  ["images", "1"], ["image", "448x448"], ["images", ""], ["image", ""], ["task", "dpo"], ["prompt", "256"],
  ["task", "grpo"], ["engine", "vllm_server"], ["completions", "4"],
  ["engine", "vllm"], ["share", "0.2"], ["kernels", "all"], ["segments", "true"],
  ["task", ""], ["model", "Qwen/Qwen2.5-0.5B"]];
for (const [name, value] of changes) {
  await set(name, value);
  const line = page().querySelector("#commands pre").textContent.replaceAll("\\\\\\n", "");
  await send({ step: name, line, head: head(), error: status().classList.contains("bad") ? status().textContent : "" });
}
await asked(() => frame.contentWindow.history.back());
await send({ step: "back", model: controls().model.value, address: frame.contentWindow.location.hash });
await asked(() => frame.contentWindow.history.forward());
await send({ step: "forward", head: head() });
""",
    )
    assert not [data["failure"] for data in sent if "failure" in data]
    steps = {data["step"]: data for data in sent if "step" in data}
    need, capacity = figures("Qwen/Qwen2.5-7B-Instruct", "--gpu", "rtx4090", "--global-batch", "16")
    assert f"{need} GiB of {capacity} on RTX 4090" in steps["start"]["head"]
    flags = {
        "tokens": "--seq-len 4096", "method": "--method qlora", "rank": "--lora-rank 32", "gpu": "--gpu l40s",
        "batch": "--global-batch 8", "gpus": "--num-gpus 2", "strategy": "--strategy zero3", "loss": "--loss liger",
        "offload": "--offload optimizer", "optimizer": "--optimizer adamw_8bit", "quantize": "--quantize nf4",
        "checkpointing": "--checkpointing none", "attention": "--attention eager", "batches": "--batches padded",
        "dtype": "--dtype fp16", "model": "suggest Qwen/Qwen2.5-0.5B", "prompt": "--task dpo --prompt-len 256",
        "share": "--generate-with vllm --vllm-share 0.2", "kernels": "--fused-kernels all",
        "segments": "--expandable-segments",
        "completions": "--task grpo --prompt-len 256 --num-generations 4 --generate-with vllm_server",
    }  # fmt: skip
    for step, flag in flags.items():
        line = " ".join(steps[step]["line"].split())
        assert flag in line
        printed = cli(*line.split()[1:], "--json")
        assert bool(steps[step]["error"]) == (printed.returncode == 2), (line, printed.stderr)
        if printed.returncode != 2:
            assert " GiB of ".join(figures(*line.split()[2:])) in steps[step]["head"]
    assert steps["back"]["model"] == "Qwen/Qwen2.5-7B-Instruct"
    assert "batches=padded" in steps["back"]["address"]
    verdicts = [
        steps[step]["head"].partition("Free: ")[0] for step in ("forward", "model")
    ]  # a free change comes later
    assert verdicts[0] == verdicts[1]


def test_an_address_a_cell_a_change_and_a_framework(site: Path) -> None:
    sent = browser.visit(
        site,
        """
await answered();
await until(() => page().querySelectorAll(".matrix tbody tr").length >= 8, "the table");
await send({ step: "address", head: head(), tokens: controls().tokens.value });
page().querySelector('.matrix [data-gpu="h100-sxm"][data-micro="2"]').click();
await until(() => head().includes("on H100 SXM"), "the cell");
await answered();
await send({ step: "cell", head: head(), line: page().querySelector("#commands pre").textContent });
frame.contentWindow.history.back();
await until(() => head().includes("RTX 4090") && page().querySelector(".lever .primary"), "the change");
page().querySelector(".lever .primary").click();
await until(() => controls().loss.value === "liger", "the control");
await answered();
await send({ step: "apply", loss: controls().loss.value });
[...page().querySelectorAll("[role=tab]")].find((tab) => tab.textContent === "llamafactory").click();
await until(() => page().querySelector("#commands pre").textContent.includes("per_device"), "the framework's lines");
await send({ step: "framework", text: page().querySelector("#commands pre").textContent });
""",
        address="#tokens=10&batch=8&micro=none",
    )
    assert not [data["failure"] for data in sent if "failure" in data]
    steps = {data["step"]: data for data in sent if "step" in data}
    assert steps["address"]["tokens"] == "10"
    assert "2×4×1=8" in steps["cell"]["head"]
    assert "--micro-batch 2" in steps["cell"]["line"]
    words = ("Qwen/Qwen2.5-7B-Instruct", "--gpu", "rtx4090", "--seq-len", "1024", "--global-batch", "8")
    printed = cli("suggest", *words, "--loss", "liger", "--for", "llamafactory")
    said = [line.replace("vramplan: ", "# ") for line in printed.stderr.splitlines()]
    assert steps["framework"]["text"].splitlines() == [*printed.stdout.splitlines(), *said]


def test_other_names_in_an_address_and_rows_that_cannot_run(site: Path) -> None:
    """An address's name that no list has is answered or refused as on the command line, and no old row stays."""
    sent = browser.visit(
        site,
        """
await answered();
await send({ step: "alias", head: head() });
await until(() => page().querySelectorAll(".matrix tbody tr").length >= 8, "the table");
await set("gpu", "t4");
await until(() => !page().querySelector(".matrix .old"), "all rows");
await set("attention", "flash");
await until(() => page().querySelector(".matrix [data-row=t4] .none"), "the row of a GPU that cannot run it");
await until(() => !page().querySelector(".matrix .old"), "all rows");
await send({ step: "rows", error: status().textContent, why: page().querySelector(".matrix [data-row=t4] .none").title,
  fitting: page().querySelectorAll(".matrix [data-row=rtx4090] button").length });
frame.contentWindow.location.hash = "#gpu=rtx40900";
await until(() => status().textContent.includes("rtx40900"), "the refusal");
await send({ step: "unknown", error: status().textContent });
frame.contentWindow.location.hash = "#model=config.json";
await until(() => status().textContent.includes("config.json"), "the refusal");
await send({ step: "no file", error: status().textContent });
""",
        address="#gpu=a100-80gb&model=Qwen/Qwen2.5-0.5B",
    )
    assert not [data["failure"] for data in sent if "failure" in data]
    steps = {data["step"]: data for data in sent if "step" in data}
    assert "on A100 80GB" in steps["alias"]["head"]
    assert steps["rows"]["error"] == steps["rows"]["why"] != ""
    assert steps["rows"]["fitting"]
    assert steps["unknown"]["error"].startswith("unknown GPU 'rtx40900'; did you mean rtx4090")
    assert steps["no file"]["error"] == "config.json: this browser does not have the file, drop it here"


def test_a_page_that_was_opened_as_a_file_says_what_to_do(site: Path) -> None:
    command = [browser.CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    page = subprocess.run(
        [*command, (site / "index.html").as_uri()],  # type: ignore[list-item]
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    assert f'run  python -m http.server -d "{site}"  and open localhost:8000' in page


def test_a_model_s_own_file_and_no_other_host(site: Path) -> None:
    sent = browser.visit(
        site,
        """
await answered();
const drop = (name, text) => {
  const transfer = new frame.contentWindow.DataTransfer();
  transfer.items.add(new frame.contentWindow.File([text], name));
  page().dispatchEvent(new frame.contentWindow.DragEvent("drop", { dataTransfer: transfer, bubbles: true }));
};
await asked(() => drop("config.json", "{"));
await send({ step: "broken", error: status().textContent });
drop("notes.txt", "x");
await until(() => status().textContent.startsWith("notes.txt"), "what is said of the file");
await send({ step: "other", error: status().textContent });
await asked(() => drop("config.json", CONFIG));
await send({ step: "own", head: head(), error: status().textContent });
const hosts = frame.contentWindow.performance.getEntriesByType("resource").map((entry) => new URL(entry.name).origin);
await send({ step: "hosts", hosts: [...new Set(hosts)], own: location.origin });
""".replace("CONFIG", json.dumps(json.dumps(OWN))),
    )
    assert not [data["failure"] for data in sent if "failure" in data]
    steps = {data["step"]: data for data in sent if "step" in data}
    assert steps["broken"]["error"].startswith("config.json")
    assert steps["other"]["error"].startswith("notes.txt: expected a config.json")
    assert "GiB of 23.5 on RTX 4090" in steps["own"]["head"]
    assert steps["hosts"]["hosts"] == [steps["hosts"]["own"]]


OWN = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 2048,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 32000,
    "max_position_embeddings": 4096, "tie_word_embeddings": False, "hidden_act": "silu", "rms_norm_eps": 1e-6,
}  # fmt: skip
