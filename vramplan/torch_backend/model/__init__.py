"""The real model and training loop, built with transformers and PEFT."""
