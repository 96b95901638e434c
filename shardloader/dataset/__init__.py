"""Samples and batches as training sees them: `ShardDataset`, and what it shares with the loader.

Knows torch, torchdata's protocol, the order and the readers. `recipe` holds what was asked for,
`samples` reads one sample, `batches` reads steps, `collate` joins samples, `shard_dataset` and
`map_dataset` are the public faces.
"""
