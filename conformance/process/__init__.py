"""A process of the kit: start, messages, supervision and end. It knows nothing about runs."""
