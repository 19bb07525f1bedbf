"""The relay's processes: assembly, listener processes, watching and reloading the policy, systemd."""
