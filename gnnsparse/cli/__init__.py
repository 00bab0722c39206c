"""The `gnnsparse` command: one table of subcommands, and those that have no other home."""
