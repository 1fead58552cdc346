"""Shows workdirs as one HTML page, or as figures for a paper.

It only reads files of workdirs, and imports nothing that a run trains with.
Start reading in `write`: it reads workdirs, whose `page.Run` is rendered by
`page` and app.js, or drawn by `plots`.
"""
