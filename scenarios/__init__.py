"""One module a bug. See CONTRIBUTING.md for how to add one; the harness finds it by itself."""
