"""What reinforcement learning does in front of an optimizer step: generation, scoring, weights on their way to vLLM."""
