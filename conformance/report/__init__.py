"""Reports: sections computed once, and laid out as text, Markdown and pages."""
