"""The loader: batches for a rank, exact checkpoints, and epochs that advance by themselves.

`loader` is the public class, `stream` what runs in workers, `log` writes down what was received,
`loss` says what a batch weighs.
"""
