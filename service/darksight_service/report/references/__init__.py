"""References: the input of a prediction, a picture, a text or a sound, named by its tag `reference`.

names      what a reference may be: a path below the configured folder, or an URL of a configured origin
files      reading a file below the folder, and what kind of file it is by its first bytes
pictures   small pictures of files and arrays, for reports
"""
