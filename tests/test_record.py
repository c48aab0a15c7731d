"""Records: what passes without pydantic, passes pydantic unchanged; all else is pydantic's to judge."""

from __future__ import annotations

import copy
import json
import pickle
from random import Random
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from vramplan.inputs.catalog import all_gpus, find_model, model_names
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.record import REQUIRED, Record
from vramplan.inputs.sharding import Fsdp, Zero

RECORDS = (Job, Zero, Fsdp, Gpu, ModelSpec)
CANDIDATES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 8, 1 << 24, (1 << 24) + 1, 1 << 70, 0.0, 0.5, 1.0, 1, float("nan"), float("inf")),
    *("", "lora", "full", "none", "nf4", "bf16", "fp32", "uint8", "ddp", "zero3", "pipeline", "standard", "trainer"),
    *("frozen", "stacked", "sdpa", "unpadded", "pre", b"full", (), ("q_proj",), ("a", 1), (1, 2), (0,), (1024, 768)),
    *([], ["q_proj"], {}, {"a": 1}, Zero(), Fsdp(version=1), {"version": 1}, object()),
)


def outcome(make: Any, values: dict[str, Any]) -> Any:
    """The values that came out, with their types, or what is wrong with them."""
    try:
        made = make(**values)
    except ValidationError as error:
        return [(one["loc"], one["type"], one["msg"]) for one in error.errors(include_input=False)]
    names = made.model_fields if isinstance(made, Record) else type(made).model_fields
    return {name: repr(getattr(made, name)) for name in names}, made.model_fields_set


@pytest.mark.parametrize("record", RECORDS)
def test_every_value_is_judged_as_by_pydantic(record: type[Record]) -> None:
    required: dict[str, Any] = {
        "name": "x", "title": "x", "vendor": "x", "driver_total_bytes": 1, "cuda_total_bytes": 1, "model_type": "x",
        "bandwidth_bytes_per_second": 1.0, "flops_per_second": {}, "config": {}, "cuda_total_source": "x",
    }  # fmt: skip
    needed = {
        name: required[name]
        for name, field in record.model_fields.items()
        if field.default is REQUIRED and field.default_factory is None
    }
    plain = 0
    for name, field in record.model_fields.items():
        values = [*CANDIDATES, *get_args(field.annotation)]
        for value in values:
            given = {**needed, name: value}
            assert outcome(record, given) == outcome(record._model(), given), (name, value)
            plain += field.takes(value)
    assert plain > len(record.model_fields) // 2, "most fields have values that pass without pydantic"


@pytest.mark.parametrize("values", [{"nonsense": 1}, {"lora_rank": 0}, {"method": "qlora"}, {"zero": {"nonsense": 1}}])
def test_errors_are_pydantics(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="1 validation error for Job") as ours:
        Job(**values)
    with pytest.raises(ValidationError) as theirs:
        Job._model()(**values)
    assert str(ours.value) == str(theirs.value)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ValidationError, match="cuda_total_bytes"):
        Gpu(name="x", title="x", vendor="x", driver_total_bytes=1, cuda_total_source="")  # type: ignore[call-arg]


def test_former_names_and_values() -> None:
    assert Job.model_validate({"kbit": True, "quantize": "nf4", "strategy": "pipeline"}) == Job(
        prepare_for_kbit_training=True, quantize="nf4", strategy="device_map"
    )
    assert Fsdp.model_validate({"carves": False}).model_fields_set == {"wraps_embeddings"}


def test_json_and_python_make_the_same() -> None:
    text = '{"lora_targets": ["q_proj"], "image_size": [4, 2], "zero": {"overlap_comm": true}, "lora_dropout": 0}'
    job = Job.model_validate_json(text)
    assert job == Job(lora_targets=("q_proj",), image_size=(4, 2), zero=Zero(overlap_comm=True), lora_dropout=0.0)
    assert TypeAdapter(Job).validate_json(text) == job
    assert TypeAdapter(list[Job]).validate_python([job]) == [job]
    assert Job.model_validate(job) is job
    assert Job.model_validate({"lora_targets": ["q_proj"]}, strict=False).lora_targets == ("q_proj",)
    with pytest.raises(ValidationError):
        Job.model_validate({"lora_targets": ["q_proj"]})


def test_what_is_written_is_read_again() -> None:
    random = Random(1)
    for _ in range(50):
        values: dict[str, Any] = {}
        for name, field in Job.model_fields.items():
            fitting = [value for value in CANDIDATES if field.takes(value)]
            if fitting and random.random() < 0.3:
                values[name] = random.choice(fitting)
        job = Job(**values)
        for dumped in (
            job.model_dump(mode="json"),
            job.model_dump(mode="json", exclude_defaults=True),
            job.model_dump(mode="json", exclude_unset=True),
            json.loads(TypeAdapter(Job).dump_json(job)),
            TypeAdapter(Job).dump_python(job, mode="json", exclude_unset=True),
        ):
            assert Job.model_validate_json(json.dumps(dumped)) == job
        assert job.model_dump_json(exclude_defaults=True).encode() == TypeAdapter(Job).dump_json(
            job, exclude_defaults=True
        )
        assert job.model_dump(mode="json", exclude_unset=True).keys() == values.keys()
        assert job.model_dump(include={"dtype"}) == {"dtype": job.dtype}
        assert "dtype" not in job.model_dump(exclude={"dtype"})
        assert Job(**job.model_dump() | {"zero": job.zero, "fsdp": job.fsdp}) == job


def test_schemas_describe_every_field() -> None:
    for record in RECORDS:
        properties = record.model_json_schema()["properties"]
        assert properties.keys() == record.model_fields.keys()
        assert all("description" in each for each in properties.values())


def test_records_do_not_change() -> None:
    job = Job(lora_rank=4)
    with pytest.raises(AttributeError, match="Job cannot be changed"):
        job.lora_rank = 8  # type: ignore[misc]
    with pytest.raises(AttributeError, match="Job cannot be changed"):
        del job.lora_rank
    other = job.model_copy(update={"lora_rank": 8})
    assert (job.lora_rank, other.lora_rank, other.model_fields_set) == (4, 8, {"lora_rank"})
    assert job != other
    assert job != "job"
    assert {job: 1}[Job(lora_rank=4)] == 1
    for same in (copy.copy(job), copy.deepcopy(job), pickle.loads(pickle.dumps(job)), job.model_copy()):
        assert same == job
        assert same.model_fields_set == job.model_fields_set
    assert repr(Fsdp(version=1)).startswith("Fsdp(version=1, reshard_after_forward=True, ")
    spec = ModelSpec(name="a", model_type="b", config={})
    assert spec.processor is not ModelSpec(name="a", model_type="b", config={}).processor


def test_all_that_is_shipped_is_valid() -> None:
    """It is read without validation."""
    for gpu in all_gpus():
        assert Gpu._model().model_validate(gpu.model_dump())
    for name in model_names():
        spec = find_model(name)
        assert spec is not None
        assert ModelSpec._model().model_validate(spec.model_dump())
