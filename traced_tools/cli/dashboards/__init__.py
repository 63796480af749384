"""`traced-tools dashboards`: the commands that export the dashboards and import them into Grafana."""
