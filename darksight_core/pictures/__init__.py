"""Pictures of maps: one palette, one placement of names and one drawing for commands, estimator, report, explorer."""
