"""The sources of checks, a folder each; :mod:`gradconform.run.sources` lists them."""
