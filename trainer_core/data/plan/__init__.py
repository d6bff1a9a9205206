"""Plans cycles: the order of rows, what each source and stratum gives, and the records of it. Pure but for
its records.
"""
