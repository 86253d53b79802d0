"""Reading: the report's schema, reports read back, compared and merged."""
