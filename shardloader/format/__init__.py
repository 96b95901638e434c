"""What the bytes on disk mean: tar shards, sample indexes and manifests.

This layer turns bytes into values and values into bytes. It knows nothing of files, folders,
stores, clocks or torch: a caller hands it a buffer and the name to use in messages.
"""
