"""The map: the student over the plane, placement of rows, density, regions and paths."""
