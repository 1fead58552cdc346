"""Shows workdirs as one HTML page.

It only reads files of workdirs, and imports nothing that a run trains with.
Start reading in `write`: it reads workdirs by `pretraining` and `tasks`, as
`page.Run`, which `page` renders; `curves` lays out the charts, and `tables` has
what both the terminal and the page show.
"""
