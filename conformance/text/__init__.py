"""Text that is shown: foreign text made safe, and findings in words."""
