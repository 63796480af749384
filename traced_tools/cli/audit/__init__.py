"""`traced-tools audit`: the commands list, show, verify, export, sql, match and erase."""
