"""Building blocks of the models: attention, MLP, mixture of experts, LoRA, losses."""
