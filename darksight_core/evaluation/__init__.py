"""How good a map and its scores are, measured on rows.

measures         all measures of a map: fidelity, neighbourhoods and classes
fidelity         agreement of the student with the watched classifier
neighbourhoods   local fidelity and trustworthiness
classes          confidence around class centres, and the distance of confused classes
reliability      whether confidence is accuracy, in bins and by class
failure          how well a score finds wrong predictions and foreign rows
kl_matching      a published score, for comparison
compare          all scores side by side
set_coverage     what the prediction sets of rejected rows hold
cases            rows worth a look
"""
