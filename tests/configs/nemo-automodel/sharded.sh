automodel finetune llm -c full.yaml --nproc-per-node 4
