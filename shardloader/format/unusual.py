"""What do the ways by columns say to whatever they were not made for?

`Unusual` is no error of the data: it sends the whole shard to the careful parser, which alone
makes messages and notices.
"""


class Unusual(Exception):  # noqa: N818  # it is no error
    """Something here is left to the careful parser."""
