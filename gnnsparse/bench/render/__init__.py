"""The command `gnnsparse report`: one page, and Markdown, of all results in JSON files."""
