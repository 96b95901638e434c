"""Where the bytes lie: local files, their indexes and manifest, and samples as slices of a map.

This layer opens, locks, maps and publishes files, and hands their bytes to `shardloader.format`.
It does not know torch, nor who reads which sample and when.
"""
