"""How fast is each writer? See `__main__`."""
