"""The map: class densities, points of rows, and what lies where.

student     P(k | y) and P(y; θ): one Student-t density for each class
placement   from a row of probabilities to its point: f_p, anchors, Newton steps
anchors     points of known rows, class by class, from which placement starts
density     kernel density of the reference points
bandwidth   its bandwidth
regions     polygons in which rows are rejected
paths       curves between classes
"""
