"""Feed distributed PyTorch training from tar shards, and resume exactly, on any topology."""
