"""Writing datasets: samples or a folder tree become shards, their indexes and a manifest.

Knows stores and formats; knows neither torch nor who will read which sample.
"""
