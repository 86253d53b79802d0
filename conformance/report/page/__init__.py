"""Reports as one self-contained HTML file, or as Markdown."""
