trl dpo --config dpo.yaml --use_liger_kernel --padding_free
