"""Report schema, and reading, comparing and merging of reports and records."""
