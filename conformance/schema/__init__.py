"""The published JSON Schema of the report, and what reads a report and says what is wrong with one."""
