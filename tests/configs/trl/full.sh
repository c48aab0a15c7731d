trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name trl-lib/Capybara --output_dir out --packing \
  --attn_implementation flash_attention_2
