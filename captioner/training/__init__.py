"""A recipe to a checkpoint.

In: a YAML recipe and a data set. Out: a run folder with the last and the best checkpoint, a log and a page. Read
`train.py` first, then `criterion.py` for the losses and `learner.py` for the change of the weights; README.md describes
the settings, several processes and SLURM.
"""
