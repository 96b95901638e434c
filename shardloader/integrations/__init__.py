"""What other libraries' trainers call; each module needs its library, and is imported by name."""
