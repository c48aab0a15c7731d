from trl import DPOConfig, DPOTrainer


class LongerTrainer(DPOTrainer):
    def compute_ref_log_probs(self, model, inputs):
        return super().compute_ref_log_probs(model, inputs)


LongerTrainer(model="Qwen/Qwen2.5-0.5B-Instruct", args=DPOConfig(output_dir="out"), train_dataset=pairs).train()
