accelerate launch --num_processes 8 trl/scripts/dpo.py --config dpo.yaml --accelerate_config zero3 --use_peft false
