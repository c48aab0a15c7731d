#!/bin/bash
CUDA_VISIBLE_DEVICES=0,1 accelerate launch \
    --config_file fsdp_accelerate.yaml \
    src/train.py fsdp_qlora.yaml
