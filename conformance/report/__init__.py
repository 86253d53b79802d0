"""Reports: sections, computed once, laid out as text, Markdown and HTML pages."""
