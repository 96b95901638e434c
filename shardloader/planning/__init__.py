"""Plans and audits: the order joined to a manifest. Reads manifests and logs, never a shard."""
