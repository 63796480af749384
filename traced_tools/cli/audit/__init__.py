"""`traced-tools audit`: the commands that list, show, verify, export, match and erase audit records."""
