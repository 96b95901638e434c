"""Whose rank is this? Knows the environment and torch.distributed; starts no process group."""
