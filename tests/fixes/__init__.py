"""Every fix that an error or a finding names, run: what fails, what its message says, and what then works."""
