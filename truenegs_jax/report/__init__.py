"""Shows workdirs as one HTML page, or as figures for a paper.

It only reads files of workdirs, and imports nothing that a run trains with.
Start reading in `write`: it reads workdirs, whose `page.Run` is rendered by
`page`, with charts.js for its curves, or drawn by `plots`.
"""
