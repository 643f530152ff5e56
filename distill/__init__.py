"""Trains a student model on a teacher's logits with JAX, and writes traces that `profiler` explains."""
