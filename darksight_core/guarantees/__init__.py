"""Statistical guarantees for new rows.

binomial            exact tails and Clopper-Pearson bounds
conformal           p-values and the cutoff of outliers
class_conditional   p-values within each predicted class
calibration         the calibration scores of a bundle
risk_curve          coverage and risk of every threshold
thresholds          thresholds with a guaranteed coverage, accuracy or risk
prediction_sets     sets of classes for rejected rows
"""
