CUDA_VISIBLE_DEVICES=0 python full_hf.py --output out --batch-size 16 --checkpointing
