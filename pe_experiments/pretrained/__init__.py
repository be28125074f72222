"""Evaluate pretrained models of transformers over context length, as they are and with rescaled RoPE."""
