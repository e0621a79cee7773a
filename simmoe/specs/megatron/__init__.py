"""Plans as command lines of Megatron-LM, and back."""
