"""Reading: the report's schema, reports and records read back, reports compared and merged."""
