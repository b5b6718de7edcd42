"""Whether a model trains right with these packages: what is asked, the checks by name, and the recorded verdicts.

The checks themselves need torch and stand in dsrun/train/certify."""
