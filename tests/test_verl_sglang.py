"""SGLang beside verl's training: what it holds while it sleeps and generates, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_verl_rl import BATCH, DEFAULTS, MODEL, QWEN, ROLLOUT, line
from vramplan import check, estimate
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.detect import from_line
from vramplan.frameworks.readers.verl_sglang import eager_keys
from vramplan.inputs.catalog import find_gpu, find_model
from vramplan.inputs.job import Job
from vramplan.inputs.verl import Verl
from vramplan.memory import sglang
from vramplan.planner.levers import memory_levers
from vramplan.planner.read_config import read
from vramplan.units import GiB, MiB

SGLANG = f"{ROLLOUT}.name=sglang"


def job(share: float = 0.5, parallel: int = 2, eager: bool = False, sleeps: bool = True, offload: bool = False) -> Job:
    verl = {**DEFAULTS["verl"], "engine": "sglang", "eager": eager, "param_offload": offload}
    engine = "vllm_sleep" if sleeps else "vllm"
    changes = {"verl": verl, "vllm_share": share, "vllm_tensor_parallel": parallel, "generate_with": engine}
    return Job(**{**DEFAULTS, **changes})


def test_its_settings_are_read() -> None:
    found = read(from_line(line(*BATCH, SGLANG, f"{ROLLOUT}.enforce_eager=True"), None, {}), 1)
    own = {"engine": "sglang", "eager": True, "texts": 256}  # rollout.max_num_seqs; 1,024 before 0.9.1
    assert found.job == {**DEFAULTS, "verl": {**DEFAULTS["verl"], **own}}


def test_the_share_is_of_what_was_free() -> None:
    """srt/model_executor: (free before the model loads) x share is for its weights and its cache."""
    gpu = find_gpu("h100")
    assert sglang.static_bytes(job(), gpu, 4 * GiB) == (gpu.cuda_total_bytes - 4 * GiB) // 2
    weights, cache, activations = sglang.awake(job(), gpu, 2 * GiB, 4 * GiB, None)
    assert weights.num_bytes + cache.num_bytes == (gpu.cuda_total_bytes - 4 * GiB) // 2
    assert activations.num_bytes == 8192 * 1.5 * MiB  # srt/server_args.py: chunked_prefill_size 8k below 90 GiB


def test_activations_are_those_of_its_layers() -> None:
    """Of Qwen2.5-7B: in the feed-forward 4 x 3,584 and 3 x 18,944 numbers a token, half of the latter on each of 2."""
    sizes = sglang.Sizes(3584, 18944, 28 * 128, 4 * 128, 152_064)
    assert sglang.prefill_bytes(8192, sizes, 1) == 2 * 8192 * (4 * 3584 + 3 * 18944)
    assert sglang.prefill_bytes(8192, sizes, 2) == 2 * 8192 * (4 * 3584 + 3 * 18944 // 2)
    whole = sglang.activations(job(parallel=1), find_gpu("h100"), sizes).num_bytes
    assert whole == sglang.prefill_bytes(8192, sizes, 1) + 3 * 4 * 1024 * 152_064
    narrow = sizes._replace(intermediate=1024)
    assert sglang.prefill_bytes(1, narrow, 1) == 2 * (3 * 3584 + 2 * 28 * 128 + 2 * 4 * 128)


@pytest.mark.parametrize(
    ("gpu", "parallel", "eager", "size"),
    [
        ("rtx4090", 1, False, 1.1),  # sglang#2542
        ("h100", 2, False, 7.1),  # sglang#7009
        ("h100", 2, True, 1.1),
        ("rtx4090", 4, False, 1.1 + 6 * 56 / 232),  # graphs of up to 80 texts
    ],
)
def test_graphs_stay_while_it_sleeps(gpu: str, parallel: int, eager: bool, size: float) -> None:
    assert sglang.asleep_bytes(job(parallel=parallel, eager=eager), find_gpu(gpu)) == pytest.approx(size * GiB, abs=2)


def test_an_update_holds_what_stays_and_a_generation_all() -> None:
    """Beside the same training, phase by phase: weights and cache are there only while it generates."""

    def phases(settings: Job) -> dict[str, int]:
        found = estimate(QWEN, "h100", **settings.model_dump(exclude_unset=True))
        return dict(found.phases)

    asleep, eager, larger = phases(job()), phases(job(eager=True)), phases(job(share=0.6))
    assert asleep["backward"] - eager["backward"] == pytest.approx(6 * GiB, abs=1024)
    assert larger["backward"] == asleep["backward"]
    assert larger["generation"] > asleep["generation"] + 7 * GiB


def test_without_sleep_it_holds_all_of_it() -> None:
    asleep = estimate(QWEN, "h100", **job().model_dump(exclude_unset=True))
    always = estimate(QWEN, "h100", **job(sleeps=False).model_dump(exclude_unset=True))
    assert always.device_total_bytes > asleep.device_total_bytes


def test_an_answer_names_sglang_and_not_vllm(tmp_path: Path) -> None:
    script = tmp_path / "grpo.sh"
    script.write_text(line(*BATCH, SGLANG), encoding="utf-8")
    verdict = check(script, "h100")
    texts = [*(term.label for term in verdict.estimate.terms), *verdict.estimate.assumptions]
    texts += verdict.estimate.notes
    assert any("SGLang" in text for text in texts)
    assert not any("vLLM" in text for text in texts)


def test_a_share_without_room_for_its_weights(tmp_path: Path) -> None:
    settings = {**job(share=0.15, parallel=1).model_dump(exclude_unset=True)}
    with pytest.raises(ConfigError, match="try to increase --mem-fraction-static"):
        estimate("Qwen/Qwen2.5-7B", "h100", **settings)


@pytest.mark.parametrize(
    ("overrides", "version", "named"),
    [
        ((f"{MODEL}.lora_rank=8",), None, "modelled: actor_rollout_ref.rollout.name=vllm"),
        ((), "0.6", "sglang of verl 0.6 is not modelled; modelled: from 0.7 on, or vllm"),
        ((f"+{ROLLOUT}.engine_kwargs.sglang.cuda_graph_max_bs=8",), None, "engine_kwargs.sglang.cuda_graph_max_bs"),
    ],
)
def test_what_of_it_is_not_modelled(overrides: tuple[str, ...], version: str | None, named: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        read(from_line(line(*BATCH, SGLANG, *overrides), None, {}), 1, version)
    assert named in str(caught.value)


def test_vllm_is_what_it_was() -> None:
    assert Verl().engine == "vllm"
    assert "engine" not in read(from_line(line(*BATCH), None, {}), 1).job["verl"]


def test_its_graphs_are_proposed_to_go() -> None:
    settings, spec = job(share=0.6), find_model(QWEN)
    assert spec is not None
    eager = settings.verl.model_copy(update={"eager": True})
    proposed = memory_levers(spec, settings, find_gpu("h100"), 80 * GiB)
    assert {"verl": eager} in [change.update for change in proposed]
    assert eager_keys(settings.verl.model_dump()) == {eager: f"{ROLLOUT}.enforce_eager True"}
