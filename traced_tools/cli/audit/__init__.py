"""`traced-tools audit`: list, show, verify, export and match, over what `traced_tools.audit` reads."""
