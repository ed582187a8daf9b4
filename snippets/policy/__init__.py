"""Policy gradients, PPO, GRPO and what replaced them."""
