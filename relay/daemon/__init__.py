"""Processes: assembly, listeners in processes of their own, the policy watched and reloaded, systemd."""
