"""Reports as pages to look at: one HTML file that needs nothing else, or Markdown."""
