"""Checkpoints as folders in the Hugging Face layout: weights, configuration, tokenizer, modelling code."""
