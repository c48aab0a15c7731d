"""Texts of embedding models are often shorter than 128 tokens: a script without a limit is judged there too."""

from pathlib import Path

import vramplan

SCRIPT = """\
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss

model = SentenceTransformer("BAAI/bge-m3")
args = SentenceTransformerTrainingArguments(output_dir="out", per_device_train_batch_size=64, bf16=True)
SentenceTransformerTrainer(model=model, args=args, loss=MultipleNegativesRankingLoss(model)).train()
"""


def test_a_script_without_a_length_says_up_to_which_length_it_fits(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    verdict = vramplan.check(script, gpu="rtx4090")
    assert verdict.depends
    assert not verdict.fits
    assert verdict.estimate.job.sequence_length < 128
    longer = [case for case in verdict.cases if case.sequence_length >= 128]
    assert longer
    assert not any(case.fits for case in longer)
